"""What people ask for: each operation stands alone on the rooms below."""
