"""In which order does an epoch visit the rows, and which are a step's?"""
