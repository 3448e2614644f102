//! Errors with a hint.

use std::{error, fmt};

use weir_model::edit_distance;

/// An error, and a hint how to resolve it.
#[derive(Debug)]
pub struct Failure {
    what: Box<dyn error::Error + Send + Sync>,
    hint: String,
}

impl Failure {
    /// A failure from a text or a library error, with its hint.
    pub fn new(
        what: impl Into<Box<dyn error::Error + Send + Sync>>,
        hint: impl Into<String>,
    ) -> Self {
        Failure { what: what.into(), hint: hint.into() }
    }

    /// The hint.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// Whether the error is of this type.
    pub fn is<E: error::Error + 'static>(&self) -> bool {
        self.what.is::<E>()
    }

    /// The error and its hint in one line.
    pub fn sentence(&self) -> String {
        match &*self.hint {
            "" => self.what.to_string(),
            hint => format!("{}; {hint}", self.what),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.what.fmt(f)
    }
}

impl error::Error for Failure {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.what.source()
    }
}

/// The known words with the smallest edit distance: at most three, all at the same distance.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Vec<&'a str> {
    const MAX_SUGGESTIONS: usize = 3;
    let mut ranked: Vec<(usize, &str)> =
        known.iter().map(|other| (edit_distance(word, other), *other)).collect();
    ranked.sort_unstable();
    ranked.dedup();
    let best = ranked.first().map_or(0, |(distance, _)| *distance);
    ranked
        .into_iter()
        .take_while(|(d, _)| *d == best)
        .map(|(_, near)| near)
        .take(MAX_SUGGESTIONS)
        .collect()
}
