"""How do rows become what a user gets for one step?"""
