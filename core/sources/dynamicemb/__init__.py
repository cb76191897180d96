"""Files of dynamicemb tables."""
