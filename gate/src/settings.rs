//! What the command line and the environment say.
