"""What a new user does in the first hour, a friction that was found there in each file."""
