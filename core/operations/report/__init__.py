"""A report on a location: its versions over time, and what the newest one holds, from bounded reads.

`results` are the data; `survey` reads listings, headers and samples of values.
"""
