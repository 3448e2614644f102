/// Only this many letters of a word are compared. It covers the longest label key, which has 317.
const MAX_LETTERS: usize = 320;

/// The candidate that the author of `word` probably meant.
///
/// Up to a third of the letters may differ, at least one and at most three. Letter case is ignored.
/// Of two candidates at the same distance, the one that sorts first is returned.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().take(MAX_LETTERS + 1).count();
    if length > MAX_LETTERS {
        return None;
    }
    let limit = (length / 3).clamp(1, 3);
    // The distance is at least the difference in length, so most candidates need no comparison.
    let similar = |candidate: &&str| {
        candidate.chars().take(length + limit + 1).count().abs_diff(length) <= limit
    };
    let ranked = candidates.into_iter().filter(similar).map(|one| (edit_distance(word, one), one));
    let (distance, best) = ranked.min()?;
    (distance <= limit && distance < length).then_some(best)
}

/// How many letters must be inserted, removed, replaced or swapped with their neighbour to turn one
/// word into the other. Letter case is ignored, and only the first 320 letters are compared.
pub fn edit_distance(one: &str, other: &str) -> usize {
    let letters = |word: &str| -> Vec<char> {
        word.chars().take(MAX_LETTERS).flat_map(char::to_lowercase).collect()
    };
    let (one, other) = (letters(one), letters(other));
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for i in 0..one.len() {
        let mut row = vec![i + 1];
        for j in 0..other.len() {
            let replaced = last[j] + usize::from(one[i] != other[j]);
            let mut best = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && one[i] == other[j - 1] && one[i - 1] == other[j] {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_typing_error_counts_once() {
        for (one, other, distance) in [
            ("", "", 0),
            ("app", "App", 0),
            ("app", "apps", 1),
            ("apps", "app", 1),
            ("app", "apq", 1),
            ("tls", "tsl", 1),
            ("", "app", 3),
            ("frontend", "backend", 5),
        ] {
            assert_eq!(edit_distance(one, other), distance, "{one} {other}");
        }
    }

    #[test]
    fn the_closest_word_is_returned_only_if_it_is_similar() {
        let known = ["podSelector", "namespaceSelector", "ipBlock", "tls"];
        for (word, expected) in [
            ("podSelektor", Some("podSelector")),
            ("ipblock", Some("ipBlock")),
            ("iBplock", Some("ipBlock")),
            ("tsl", Some("tls")),
            ("service", None),
            ("t", None),
            ("", None),
        ] {
            assert_eq!(closest(word, known), expected, "{word}");
        }
        assert_eq!(closest("x", ["y"]), None);
        let long = "x".repeat(1_000_000);
        assert_eq!(closest(&long, [&*long]), None);
    }
}
