//! The kernel's type information: ids of functions and structures, and offsets of members.

use std::collections::BTreeMap;

use thiserror::Error;

const MAGIC: u16 = 0xeb9f;

/// Why type information cannot be read.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BtfError {
    /// It is not in the format that weir knows.
    #[error("the kernel's type information (BTF) has an unknown format")]
    Format,
    /// A function or structure that weir needs is not there.
    #[error("the kernel has no {0}")]
    Missing(String),
}

/// The functions, structures and members with the names that were requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Btf {
    functions: BTreeMap<String, i32>,
    structs: BTreeMap<String, i32>,
    /// The offsets in bytes.
    members: BTreeMap<(String, String), i16>,
}

impl Btf {
    /// Reads the entries with these names. Never panics, whatever the bytes are.
    pub fn parse(
        bytes: &[u8],
        functions: &[&str],
        members: &[(&str, &str)],
    ) -> Result<Self, BtfError> {
        parse(bytes, functions, members).ok_or(BtfError::Format)
    }

    /// The id of a function.
    pub fn function(&self, name: &str) -> Result<i32, BtfError> {
        let missing = || BtfError::Missing(format!("function {name} for eBPF programs"));
        self.functions.get(name).copied().ok_or_else(missing)
    }

    /// The id of a structure.
    pub fn structure(&self, name: &str) -> Result<i32, BtfError> {
        self.structs.get(name).copied().ok_or_else(|| BtfError::Missing(format!("struct {name}")))
    }

    /// The offset of a member of a structure.
    pub fn member(&self, structure: &str, member: &str) -> Result<i16, BtfError> {
        let offset = self.members.get(&(structure.to_owned(), member.to_owned()));
        offset.copied().ok_or_else(|| BtfError::Missing(format!("{structure}.{member}")))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn parse(bytes: &[u8], functions: &[&str], members: &[(&str, &str)]) -> Option<Btf> {
    let magic = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    if magic != MAGIC {
        return None;
    }
    let header = word(bytes, 4)? as usize;
    let section = |at: usize| {
        let (start, length) = (word(bytes, at)? as usize, word(bytes, at + 4)? as usize);
        let start = header.checked_add(start)?;
        bytes.get(start..start.checked_add(length)?)
    };
    let (types, strings) = (section(8)?, section(16)?);
    let text = |at: u32| strings.get(at as usize..)?.split(|byte| *byte == 0).next();
    let starts = type_starts(types)?;
    let types = Types { types, starts };
    let mut found = Btf::default();
    for (id, at) in (1_i32..).zip(&types.starts) {
        let (kind, name) =
            (word(types.types, at + 4)? >> 24 & 0x1f, text(word(types.types, *at)?)?);
        match kind {
            STRUCT => {
                for (structure, member) in members {
                    if structure.as_bytes() != name
                        || found.structs.get(*structure).is_some_and(|first| *first != id)
                    {
                        continue;
                    }
                    found.structs.insert((*structure).to_owned(), id);
                    let is_wanted = |name: u32| text(name) == Some(member.as_bytes());
                    if let Some(bits) = types.member(id as u32, &is_wanted, MAX_DEPTH) {
                        let key = ((*structure).to_owned(), (*member).to_owned());
                        found.members.insert(key, i16::try_from(bits / 8).ok()?);
                    }
                }
            }
            FUNC => {
                if let Some(function) = functions.iter().find(|one| one.as_bytes() == name) {
                    found.functions.entry((*function).to_owned()).or_insert(id);
                }
            }
            _ => (),
        }
    }
    Some(found)
}

const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNC: u32 = 12;

/// The depth to which members without a name are searched.
const MAX_DEPTH: usize = 8;

/// The offset of each type in its section.
fn type_starts(types: &[u8]) -> Option<Vec<usize>> {
    let (mut starts, mut at) = (Vec::new(), 0_usize);
    while at < types.len() {
        starts.push(at);
        let info = word(types, at.checked_add(4)?)?;
        let count = (info & 0xffff) as usize;
        at = at.checked_add(12)?.checked_add(match info >> 24 & 0x1f {
            1 | 14 | 17 => 4,
            3 => 12,
            STRUCT | UNION | 15 | 19 => 12 * count,
            6 | 13 => 8 * count,
            2 | 7..=FUNC | 16 | 18 => 0,
            _ => return None,
        })?;
    }
    Some(starts)
}

struct Types<'a> {
    types: &'a [u8],
    starts: Vec<usize>,
}

impl Types<'_> {
    /// The offset in bits of a member, also in a member without a name.
    fn member(&self, id: u32, is_wanted: &impl Fn(u32) -> bool, depth: usize) -> Option<u32> {
        let at = *self.starts.get((id as usize).checked_sub(1)?)?;
        let info = word(self.types, at + 4)?;
        if depth == 0 || ![STRUCT, UNION].contains(&(info >> 24 & 0x1f)) {
            return None;
        }
        let has_bitfields = info >> 31 == 1;
        for number in 0..(info & 0xffff) as usize {
            let member = at + 12 + 12 * number;
            let (name, inner) = (word(self.types, member)?, word(self.types, member + 4)?);
            let bits = word(self.types, member + 8)?;
            let bits = if has_bitfields { bits & 0xff_ffff } else { bits };
            if name == 0 {
                if let Some(more) = self.member(inner, is_wanted, depth - 1) {
                    return bits.checked_add(more);
                }
            } else if is_wanted(name) {
                return Some(bits);
            }
        }
        None
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Type information in the format of the kernel.
    #[derive(Default)]
    pub(crate) struct TestBtf {
        types: Vec<u8>,
        strings: Vec<u8>,
    }

    impl TestBtf {
        fn add_words(&mut self, words: &[u32]) {
            self.types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }

        /// The offset of a text. The first text is empty.
        fn add_text(&mut self, text: &str) -> u32 {
            if self.strings.is_empty() {
                self.strings.push(0);
            }
            let at = self.strings.len() as u32;
            self.strings.extend(text.bytes().chain([0]));
            at
        }

        pub(crate) fn add_function(&mut self, name: &str) {
            let name = self.add_text(name);
            self.add_words(&[name, FUNC << 24, 0]);
        }

        /// Adds a structure with members at these offsets in bits.
        pub(crate) fn add_struct(&mut self, name: &str, members: &[(&str, u32)]) {
            let name = self.add_text(name);
            self.add_words(&[name, STRUCT << 24 | members.len() as u32, 0]);
            for (name, bits) in members {
                let name = self.add_text(name);
                self.add_words(&[name, 0, *bits]);
            }
        }

        pub(crate) fn bytes(&self) -> Vec<u8> {
            let [types, strings] = [&self.types, &self.strings].map(|one| one.len() as u32);
            let header = [24, 0, types, types, strings].map(u32::to_ne_bytes).concat();
            [&MAGIC.to_ne_bytes()[..], &[1, 0], &header, &self.types, &self.strings].concat()
        }
    }

    fn shop() -> TestBtf {
        let mut btf = TestBtf::default();
        btf.add_function("open");
        btf.add_struct("shop", &[("door", 0), ("till", 192)]);
        btf.add_function("close");
        btf
    }

    #[test]
    fn names_lead_to_numbers() {
        let members = [("shop", "till"), ("shop", "roof"), ("bank", "till")];
        let btf = Btf::parse(&shop().bytes(), &["close", "sell"], &members).unwrap();
        assert_eq!(btf.function("close"), Ok(3));
        assert_eq!((btf.structure("shop"), btf.member("shop", "till")), (Ok(2), Ok(24)));
        for missing in [
            btf.function("open").unwrap_err().to_string(),
            btf.function("sell").unwrap_err().to_string(),
            btf.structure("bank").unwrap_err().to_string(),
            btf.member("shop", "roof").unwrap_err().to_string(),
        ] {
            assert!(missing.starts_with("the kernel has no "), "{missing}");
        }
    }

    #[test]
    fn bytes_in_another_format_are_rejected() {
        let bytes = shop().bytes();
        for length in 0..bytes.len() {
            let error = Btf::parse(&bytes[..length], &["close"], &[]).unwrap_err();
            assert_eq!(error, BtfError::Format, "{length} bytes");
        }
    }
}
