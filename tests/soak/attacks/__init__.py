"""What hostile clients send: each module makes shots of its families."""
