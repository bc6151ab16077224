"""How do runs come to memory, ahead of their use and verified?"""
