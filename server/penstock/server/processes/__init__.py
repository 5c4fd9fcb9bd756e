"""Processes that run roles: forked of one zygote, with a page of notes and shared memory."""
