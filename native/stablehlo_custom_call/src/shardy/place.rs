//! Where in a text the part is that a fault's place speaks of.

use std::ops::Range;

/// The byte of `text` at which the part begins that `place` names, as far as it can be followed:
/// `operand 1, dimension 0` is the first dimension of the second mapping.
pub fn find(text: &[u8], place: &str) -> usize {
    let mut part = 0..text.len();
    for step in split(place.as_bytes(), 0..place.len()) {
        let Some(step) = place.get(step).map(str::trim) else {
            break;
        };
        match narrow(text, part.clone(), step) {
            Some(found) => part = found,
            None => break,
        }
    }
    let inside = text.get(part.clone()).unwrap_or_default();
    part.start + (inside.len() - inside.trim_ascii_start().len())
}

fn narrow(text: &[u8], part: Range<usize>, step: &str) -> Option<Range<usize>> {
    let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
    let index = || rest.parse::<usize>().ok();
    match word {
        "operand" => nth(text, group(text, part, b'(')?, index()?),
        "result" => {
            // Of a rule after the arrow; of a list of shardings there is no arrow.
            let group = match search(text, part.clone(), b"->") {
                Some(arrow) => group(text, arrow..part.end, b'(')?,
                None => group(text, part, b'[')?,
            };
            nth(text, group, index()?)
        }
        "sharding" => nth(text, group(text, part, b'[')?, index()?),
        "dimension" => nth(text, group(text, part, b'[')?, index()?),
        "axis" => search(text, part.clone(), rest.as_bytes()).map(|at| at..part.end),
        "factor" => {
            let sized = format!("{rest}=");
            let at = match search(text, part.clone(), b"{") {
                Some(sizes) => search(text, sizes..part.end, sized.as_bytes())
                    .or_else(|| search(text, sizes..part.end, rest.as_bytes())),
                None => None,
            };
            at.or_else(|| search(text, part.clone(), rest.as_bytes()))
                .map(|at| at..part.end)
        }
        "the" if rest == "mesh" => search(text, part.clone(), b"@")
            .or_else(|| search(text, part.clone(), b"mesh<"))
            .map(|at| at..part.end),
        "replicated"
        | "unreduced"
        | "reduction"
        | "need_replication"
        | "permutation"
        | "blocked_propagation"
        | "device_ids" => search(text, part.clone(), word.as_bytes()).map(|at| at..part.end),
        _ => None,
    }
}

fn search(text: &[u8], part: Range<usize>, wanted: &[u8]) -> Option<usize> {
    let inside = text.get(part.clone())?;
    if wanted.is_empty() {
        return None;
    }
    let at = inside.windows(wanted.len()).position(|w| w == wanted)?;
    Some(part.start + at)
}

/// What is between the first bracket of this kind and the one that closes it.
fn group(text: &[u8], part: Range<usize>, open: u8) -> Option<Range<usize>> {
    let start = part.clone().zip(brackets(text, part.clone()));
    let (first, _) = start
        .into_iter()
        .find(|(at, depth)| *depth > 0 && text[*at] == open)?;
    let inner = brackets(text, first..part.end);
    let length = inner.iter().skip(1).position(|depth| *depth == 0)?;
    Some(first + 1..first + 1 + length)
}

/// The part between commas.
fn nth(text: &[u8], part: Range<usize>, index: usize) -> Option<Range<usize>> {
    split(text, part).into_iter().nth(index)
}

fn split(text: &[u8], part: Range<usize>) -> Vec<Range<usize>> {
    let depths = brackets(text, part.clone());
    let mut parts = Vec::new();
    let mut start = part.start;
    for (at, depth) in part.clone().zip(depths) {
        if depth == 0 && text[at] == b',' {
            parts.push(start..at);
            start = at + 1;
        }
    }
    parts.push(start..part.end);
    parts
}

/// How deep in brackets each byte is, those of a string as deep as in one more; the bracket that opens
/// counts as inside, the one that closes as outside.
fn brackets(text: &[u8], part: Range<usize>) -> Vec<usize> {
    let mut depth = 0usize;
    let mut quoted = false;
    let mut before = 0;
    let mut depths = Vec::with_capacity(part.len());
    for &byte in &text[part] {
        match byte {
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'[' | b'(' | b'{' | b'<' => depth += 1,
            b'>' if before == b'-' => {}
            b']' | b')' | b'}' | b'>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = byte;
        depths.push(depth + usize::from(quoted));
    }
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_in_the_text() {
        let rule =
            "#sdy.op_sharding_rule<([i, jk], [i, j])->([i, jk]) {i=2, j=4, k=3} reduction={k}>";
        let sharding = r#"#sdy.sharding<@mesh, [{"a, b"}, {"y"}], replicated={"z"}>"#;
        let several = r#"#sdy.sharding_per_value<[<@mesh, [{}]>, <@ring, [{"x"}]>]>"#;
        let mesh = r#"#sdy.mesh<["x"=2, "y"=0], device_ids=[0, 0]>"#;
        for (text, place, found) in [
            (rule, "operand 1", "[i, j])->"),
            (rule, "operand 0, dimension 1", "jk], [i, j]"),
            (rule, "result 0, dimension 1, factor k", "k]) {i=2"),
            (rule, "factor j", "j=4"),
            (rule, "reduction, factor k", "k}>"),
            (rule, "operands", "#sdy.op_sharding_rule"),
            (sharding, "dimension 1", r#"{"y"}]"#),
            (sharding, r#"dimension 0, axis "a, b""#, r#""a, b"}"#),
            (sharding, "replicated", "replicated="),
            (sharding, "the mesh", "@mesh"),
            (several, "result 1, dimension 0", r#"{"x"}]"#),
            (several, "result 1, the mesh", "@ring"),
            (mesh, r#"axis "y""#, r#""y"=0"#),
            (mesh, "device_ids", "device_ids="),
            ("[", "dimension 3", "["),
        ] {
            let at = find(text.as_bytes(), place);
            assert!(text[at..].starts_with(found), "{place}: {}", &text[at..]);
        }
    }
}
