//! The API documents read aloud: slow, short, and sharing nothing with the engine but the words.
