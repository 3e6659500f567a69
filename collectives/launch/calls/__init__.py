"""Calls of a function on several ranks: on new processes or threads (`function`), or on ranks that an engine has
placed.

`outcome` has their results, in a form that can be sent between processes: a `Success` or a `Failure` for each rank.
`guests` connects the processes of an engine. The names for others are in the door of `launch`.
"""
