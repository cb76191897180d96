"""Rows in the order of their ids, in bounded memory."""
