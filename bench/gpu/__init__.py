"""The parts of `python -m bench report`: each is a function that takes nothing and returns what it found."""
