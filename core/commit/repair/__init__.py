"""How what a killed command left behind is finished or rolled back."""
