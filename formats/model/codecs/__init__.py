"""How the frames of a tensor are encoded, alone or against frames of a base."""
