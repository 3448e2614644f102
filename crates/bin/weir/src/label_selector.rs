//! Label selectors in kubectl's syntax.

use std::collections::BTreeSet;

use weir_model::{Name, Requirement, Selector};

/// Parses a selector, such as `team=a,env in (test, prod),!private`.
pub(crate) fn parse(text: &str) -> Result<Selector, String> {
    let terms = split(text)?.into_iter().map(str::trim);
    terms.filter(|term| !term.is_empty()).map(requirement).collect()
}

/// Splits at the commas outside of parentheses.
fn split(text: &str) -> Result<Vec<&str>, String> {
    let (mut terms, mut start, mut depth) = (Vec::new(), 0, 0);
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(&text[start..index]);
                start = index + 1;
            }
            _ => (),
        }
        if !(0..=1).contains(&depth) {
            return Err("the parentheses do not match".into());
        }
    }
    terms.push(&text[start..]);
    if depth == 0 { Ok(terms) } else { Err("the parentheses do not match".into()) }
}

fn requirement(term: &str) -> Result<Requirement, String> {
    if let Some((key, values)) = term.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(|| unreadable(term))?;
        let values: BTreeSet<Name> = values.split(',').map(value).collect::<Result<_, _>>()?;
        return match key.split_whitespace().collect::<Vec<_>>()[..] {
            [key, "in"] => Ok(Requirement::In(label_key(key)?, values)),
            [key, "notin"] => Ok(Requirement::NotIn(label_key(key)?, values)),
            _ => Err(unreadable(term)),
        };
    }
    if let Some((key, text)) = term.split_once("!=") {
        return Ok(Requirement::NotIn(label_key(key)?, [value(text)?].into()));
    }
    if let Some((key, text)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Ok(Requirement::In(label_key(key)?, [value(text)?].into()));
    }
    match term.strip_prefix('!') {
        Some(key) => Ok(Requirement::Absent(label_key(key)?)),
        None => Ok(Requirement::Exists(label_key(term)?)),
    }
}

fn label_key(text: &str) -> Result<Name, String> {
    let text = text.trim();
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_valid) {
        return Err(format!("{text:?} is not a label key"));
    }
    Ok(text.into())
}

fn value(text: &str) -> Result<Name, String> {
    let text = text.trim();
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !text.bytes().all(is_valid) {
        return Err(format!("{text:?} is not a label value"));
    }
    Ok(text.into())
}

fn unreadable(term: &str) -> String {
    format!("{term:?} is not a requirement such as `key=value`, `key in (a, b)` or `!key`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_have_the_syntax_of_kubectl() {
        let set = |values: &[&str]| values.iter().map(|value| Name::from(*value)).collect();
        let text = "a=1, b==2,c!=3,k8s.io/d in (x, y),e notin (z),f,!g";
        let expected = Selector::from_iter([
            Requirement::In("a".into(), set(&["1"])),
            Requirement::In("b".into(), set(&["2"])),
            Requirement::NotIn("c".into(), set(&["3"])),
            Requirement::In("k8s.io/d".into(), set(&["x", "y"])),
            Requirement::NotIn("e".into(), set(&["z"])),
            Requirement::Exists("f".into()),
            Requirement::Absent("g".into()),
        ]);
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse(""), Ok(Selector::everything()));
        for text in
            ["a in (x", "a in x)", "a in ((x))", "a of (x)", "in (x)", "=x", "!", "a b", "a=b=c"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
