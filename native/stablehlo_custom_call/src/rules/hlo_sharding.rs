//! `mhlo.sharding`: how the SPMD partitioner is to split a custom call's results, in HLO's own notation.
//!
//! XLA drops a text that it cannot read, without a word. One that it reads and that does not fit the
//! results it refuses, or ends the process over: tokens cannot be split. Source: the parser of shardings
//! in `xla/hlo/parser` of openxla/xla, and experiments on both CPU plugins.

use super::{Findings, Parsed};
use crate::{error::Count, types::Type, view::View, warning::Warning};
use std::collections::HashSet;

const EXAMPLES: &str =
    "a sharding is {replicated}, {maximal device=0} or {devices=[2,1]0,1}, or a tuple of them";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Sharding {
    One(Single),
    Tuple(Vec<Single>),
}

/// The sharding of one value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Single {
    /// The dimensions of the grid of devices, those of subgroups last; `None` where nothing is split.
    tiles: Option<Vec<u64>>,
    subgroups: usize,
    /// Whether devices along the last of the dimensions have the same part.
    replicates_last: bool,
    /// The devices, where they are listed one by one.
    devices: Vec<i64>,
    /// PJRT 0.106 refuses a grid of another size than the devices that are listed or counted up for it,
    /// and 0.115 drops it.
    contradicts: bool,
    /// The device that has all of it.
    maximal: Option<i64>,
    /// Whether it is one of those that XLA writes itself while it partitions.
    manual: bool,
}

/// Checks the sharding of values of these types, the results of an operation or a value of a function.
pub(crate) fn check(
    field: &'static str,
    results: &[Type],
    parsed: &Parsed<'_, '_>,
    findings: &mut Findings,
) {
    let mut warn = |found: String| {
        findings.warnings.push(Warning {
            field,
            name: parsed.given.name.into(),
            found,
            instead: EXAMPLES.into(),
        });
    };
    let view = parsed.view();
    let View::String(text) = view else {
        return warn(format!("XLA drops it, since it is {}", view.describe()));
    };
    let Some(sharding) = Reader::new(text).sharding() else {
        return warn("XLA drops it, since it is no sharding".into());
    };
    let mut leaves = Vec::new();
    leaves_of(results, &mut leaves);
    let what = match results {
        [Type::Tuple(_)] => "element",
        _ => "result",
    };
    if results.is_empty() {
        return warn("XLA drops it, since there is no result".into());
    }
    let is_tuple = results.len() > 1 || matches!(results, [Type::Tuple(_)]);
    let mut fault = |found: String, expected: String| {
        findings.fault(field, parsed.given, &[], found, expected);
    };
    match &sharding {
        Sharding::One(single) => {
            for (index, leaf) in leaves.iter().enumerate() {
                if let Some((found, expected)) = mismatch(single, leaf, what, index) {
                    fault(found, expected);
                }
            }
        }
        Sharding::Tuple(_) if !is_tuple => fault(
            "it is a tuple of shardings".into(),
            "there is one value, and it takes one sharding".into(),
        ),
        Sharding::Tuple(shardings) if shardings.len() != leaves.len() => fault(
            format!("it has {}", Count(shardings.len(), "sharding")),
            format!("it takes one for each of {}", Count(leaves.len(), what)),
        ),
        Sharding::Tuple(shardings) => {
            for (index, (single, leaf)) in shardings.iter().zip(&leaves).enumerate() {
                if let Some((found, expected)) = mismatch(single, leaf, what, index) {
                    fault(found, expected);
                }
            }
        }
    }
}

fn leaves_of<'a>(types: &'a [Type], leaves: &mut Vec<&'a Type>) {
    // Tuples nest no deeper than their check allows.
    for r#type in types {
        match r#type {
            Type::Tuple(elements) => leaves_of(elements, leaves),
            leaf => leaves.push(leaf),
        }
    }
}

/// Why a sharding does not fit a result.
fn mismatch(
    sharding: &Single,
    r#type: &Type,
    what: &str,
    index: usize,
) -> Option<(String, String)> {
    if let Some(device) = sharding.maximal.filter(|device| *device < 0) {
        return Some((
            format!("it names device {device}"),
            "devices are 0 or more".into(),
        ));
    }
    if sharding.manual || sharding.subgroups > 0 {
        return Some((
            "it has a part that is manual, unknown or in subgroups".into(),
            "XLA's partitioner writes such shardings itself, and ends the process over others; write \
             {replicated}, {maximal device=0} or {devices=[2,1]0,1}"
                .into(),
        ));
    }
    let tiles = sharding.tiles.as_ref()?;
    let Type::Tensor { dimensions, .. } = r#type else {
        return Some((
            format!("it splits {what} {index}, which is a {type}"),
            "only tensors can be split".into(),
        ));
    };
    if sharding.contradicts {
        return Some((
            "its grid has another size than its list of devices".into(),
            "both have as many devices".into(),
        ));
    }
    let split = tiles
        .len()
        .saturating_sub(usize::from(sharding.replicates_last));
    if split != dimensions.len() {
        return Some((
            format!(
                "its grid splits {} of {what} {index}",
                Count(split, "dimension")
            ),
            format!(
                "the {what} is a {type}, so the grid has {}, and those of subgroups",
                Count(dimensions.len(), "dimension")
            ),
        ));
    }
    let mut seen = HashSet::new();
    for &device in &sharding.devices {
        if device < 0 {
            return Some((
                format!("it names device {device}"),
                "devices are 0 or more".into(),
            ));
        }
        if !seen.insert(device) {
            return Some((
                format!("it names device {device} twice"),
                "each device holds one part".into(),
            ));
        }
    }
    None
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

/// The devices of a grid, which are counted up and never listed; and the shardings of a tuple.
const MOST_DEVICES: u64 = 1 << 40;

impl<'a> Reader<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    fn sharding(mut self) -> Option<Sharding> {
        self.space();
        // XLA reads an empty text as the default of a protocol buffer, which is replicated.
        if self.text.is_empty() {
            return Some(Sharding::One(Single::default()));
        }
        self.take(b"{")?;
        let sharding = if self.peek() == Some(b'{') || self.peek() == Some(b'}') {
            let mut shardings = Vec::new();
            if self.take(b"}").is_none() {
                loop {
                    self.take(b"{")?;
                    shardings.push(self.single()?);
                    if self.take(b"}").is_some() {
                        break;
                    }
                    self.take(b",")?;
                }
            }
            Sharding::Tuple(shardings)
        } else {
            Sharding::One(self.single()?)
        };
        self.space();
        (self.at == self.text.len()).then_some(sharding)
    }

    /// What follows the bracket, up to the one that closes it.
    fn single(&mut self) -> Option<Single> {
        let mut single = Single::default();
        let mut kinds = 0;
        let mut replicates_last = false;
        loop {
            if self.take(b"}").is_some() {
                break;
            }
            match self.word()? {
                b"replicated" | b"maximal" => kinds += 1,
                b"manual" | b"unknown" | b"unreduced" => {
                    single.manual = true;
                    kinds += 1;
                }
                b"device" => {
                    self.take(b"=")?;
                    single.maximal = Some(self.integer()?);
                }
                b"devices" => {
                    self.take(b"=")?;
                    self.devices(&mut single)?;
                    kinds += 1;
                }
                b"last_tile_dim_replicate" => replicates_last = true,
                b"last_tile_dims" => {
                    self.take(b"=")?;
                    self.take(b"{")?;
                    loop {
                        self.word()?;
                        single.subgroups += 1;
                        if self.take(b"}").is_some() {
                            break;
                        }
                        self.take(b",")?;
                    }
                }
                b"shard_as" | b"shard_like" => {
                    self.integer()?;
                }
                b"metadata" => {
                    self.take(b"=")?;
                    self.braces()?;
                }
                _ => return None,
            }
        }
        single.replicates_last = replicates_last;
        (kinds == 1).then_some(single)
    }

    fn devices(&mut self, single: &mut Single) -> Option<()> {
        let tiles = self.integers(b"[", b"]")?;
        let count = product(&tiles)?;
        if self.take(b"<=").is_some() {
            let shape = self.integers(b"[", b"]")?;
            single.contradicts = product(&shape) != Some(count);
            if self.take(b"T").is_some() {
                let mut order = self.integers(b"(", b")")?;
                order.sort_unstable();
                if !(0..).zip(&order).all(|(at, &index): (i64, _)| at == index)
                    || order.len() != shape.len()
                {
                    return None;
                }
            }
        } else {
            single.devices.push(self.integer()?);
            while self.take(b",").is_some() {
                single.devices.push(self.integer()?);
            }
            single.contradicts = single.devices.len() as u64 != count;
        }
        single.tiles = Some(tiles.iter().map(|tile| tile.unsigned_abs()).collect());
        Some(())
    }

    fn integers(&mut self, open: &[u8], close: &[u8]) -> Option<Vec<i64>> {
        self.take(open)?;
        let mut integers = vec![self.integer()?];
        while self.take(close).is_none() {
            self.take(b",")?;
            integers.push(self.integer()?);
        }
        Some(integers)
    }

    fn integer(&mut self) -> Option<i64> {
        self.space();
        let rest = &self.text[self.at..];
        let sign = usize::from(rest.first() == Some(&b'-'));
        let digits = rest[sign..].iter().take_while(|byte| byte.is_ascii_digit());
        let end = sign + digits.count();
        let digits = str::from_utf8(&rest[..end]).ok()?;
        // XLA reads what is beyond 63 bits as a negative number.
        let wrapped = || digits.parse::<u64>().map(|value| value as i64);
        let value = digits.parse().or_else(|_| wrapped()).ok()?;
        self.at += end;
        Some(value)
    }

    fn word(&mut self) -> Option<&'a [u8]> {
        self.space();
        let rest = &self.text[self.at..];
        let length = rest
            .iter()
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
            .count();
        self.at += length;
        (length > 0).then_some(&rest[..length])
    }

    /// A bracketed text that says nothing about the sharding.
    fn braces(&mut self) -> Option<()> {
        self.take(b"{")?;
        let mut depth = 1usize;
        while depth > 0 {
            match self.text.get(self.at)? {
                b'"' => {
                    self.at = crate::scan::end_of_string(self.text, self.at + 1);
                    continue;
                }
                b'{' => depth += 1,
                b'}' => depth -= 1,
                _ => {}
            }
            self.at += 1;
        }
        Some(())
    }

    fn take(&mut self, token: &[u8]) -> Option<()> {
        self.space();
        self.text[self.at..]
            .starts_with(token)
            .then(|| self.at += token.len())
    }

    fn peek(&mut self) -> Option<u8> {
        self.space();
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }
}

/// The product of sizes of a grid, all of which are positive.
fn product(sizes: &[i64]) -> Option<u64> {
    sizes
        .iter()
        .try_fold(1u64, |product, &size| {
            let size = u64::try_from(size).ok().filter(|size| *size > 0)?;
            product.checked_mul(size)
        })
        .filter(|product| *product <= MOST_DEVICES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ElementType;

    fn read(text: &str) -> Option<Sharding> {
        Reader::new(text.as_bytes()).sharding()
    }

    fn tiles(tiles: &[u64], subgroups: usize, devices: &[i64]) -> Single {
        Single {
            tiles: Some(tiles.to_vec()),
            subgroups,
            devices: devices.to_vec(),
            ..Single::default()
        }
    }

    #[test]
    fn shardings_of_one_value_are_read() {
        for text in ["", "{replicated}", "{replicated shard_as 0}"] {
            assert_eq!(read(text), Some(Sharding::One(Single::default())), "{text}");
        }
        let manual = Single {
            manual: true,
            ..Single::default()
        };
        assert_eq!(read("{manual}"), Some(Sharding::One(manual)));
        let replicates_last = Single {
            replicates_last: true,
            ..tiles(&[2, 1, 2], 0, &[])
        };
        assert_eq!(
            read("{devices=[2,1,2]<=[4] last_tile_dim_replicate}"),
            Some(Sharding::One(replicates_last))
        );
        for (text, expected) in [
            ("{devices=[2,1]0,1}", tiles(&[2, 1], 0, &[0, 1])),
            ("{devices=[2,1]<=[2]}", tiles(&[2, 1], 0, &[])),
            ("{devices=[2,2]<=[2,2]T(1,0)}", tiles(&[2, 2], 0, &[])),
            (
                "{devices=[1,1,2,2]<=[4] last_tile_dims={manual, replicated}}",
                tiles(&[1, 1, 2, 2], 2, &[]),
            ),
            (
                "{devices=[2]<=[2] metadata={op_name=\"}\"}}",
                tiles(&[2], 0, &[]),
            ),
        ] {
            assert_eq!(read(text), Some(Sharding::One(expected)), "{text}");
        }
    }

    #[test]
    fn the_shardings_that_messages_name_pass() {
        let matrix = Type::tensor(ElementType::F32, &[2, 2]);
        let named: Vec<_> = EXAMPLES
            .split_inclusive('}')
            .filter_map(|text| text.find('{').map(|at| &text[at..]))
            .collect();
        assert_eq!(
            named,
            ["{replicated}", "{maximal device=0}", "{devices=[2,1]0,1}"]
        );
        for text in named {
            let Some(Sharding::One(single)) = read(text) else {
                panic!("{text}");
            };
            assert_eq!(mismatch(&single, &matrix, "result", 0), None, "{text}");
        }
    }

    #[test]
    fn a_grid_of_another_size_than_its_devices_is_read_and_contradicts_itself() {
        for text in [
            "{devices=[2,1]0}",
            "{devices=[2]<=[3]}",
            "{devices=[2]<=[0]}",
        ] {
            let Some(Sharding::One(single)) = read(text) else {
                panic!("{text}");
            };
            assert!(single.contradicts, "{text}");
        }
    }

    #[test]
    fn a_tuple_of_shardings_is_read() {
        assert_eq!(
            read("{{replicated}, {devices=[2]<=[2]}}"),
            Some(Sharding::Tuple(vec![
                Single::default(),
                tiles(&[2], 0, &[])
            ]))
        );
        assert_eq!(read("{}"), Some(Sharding::Tuple(vec![])));
    }

    #[test]
    fn what_xla_drops_is_no_sharding() {
        for text in [
            "nonsense",
            "{replicated",
            "{replicated} x",
            "{devices=[0,1]}",
            "{mesh[x=2], [{x}]}",
            "{devices=[99999999999,99999999999]<=[2]}",
            "{replicated manual}",
            "{devices=[2]<=[2]T(1)}",
            "{devices=[-2]0,1}",
            "{device=1}",
            "{",
            "{{",
            "{devices=[",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
