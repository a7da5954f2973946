"""The words of both sides: requests (`asking`), answers (`answering`), and the fate of every member (`members`)."""
