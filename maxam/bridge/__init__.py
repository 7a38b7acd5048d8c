"""The program `maxam-bridge`: it forwards topics from the gateway of a venue to that of a centre, and back."""
