"""Who may wait, for how long, and who goes next: plain Python over stream records and a clock that is handed in."""
