//! From text to data. The grammar is that of Shardy (`attrs.td`, `parsers.cc`) and of MLIR's own
//! parser, and no rule of it leads back to itself, so the nesting is bounded by its few levels.

use std::fmt;

use super::fault::{Quoted, SyntaxFault};
use super::lexer::{self, Kind, Token};
use super::names;
use super::printer::{self, factor_symbol};
use super::*;

type Outcome<T> = Result<T, SyntaxFault>;

impl Attribute {
    /// Reads a whole attribute, in its short form `#sdy.mesh<[]>` or its long form `#sdy<mesh<[]>>`.
    ///
    /// # Errors
    /// The first byte that is wrong, and what would be right there.
    pub fn parse(text: &[u8]) -> Result<Self, SyntaxFault> {
        let mut parser = Parser::new(text);
        if parser.peek.kind != Kind::Hash {
            return Err(parser.expected("an attribute of Shardy's, as in #sdy.sharding<...>"));
        }
        let attribute = parser.extended(None, Parser::any)?;
        match parser.peek.kind {
            Kind::End => Ok(attribute),
            Kind::Sign(b':') => Err(parser.fault(
                parser.peek.start,
                format_args!("an attribute of Shardy's has no type, and XLA would pass over it; end the text before ':'"),
            )),
            _ => Err(parser.expected("the end of the text")),
        }
    }
}

struct Parser<'a> {
    text: &'a [u8],
    peek: Token,
}

impl<'a> Parser<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self {
            text,
            peek: lexer::token(text, 0),
        }
    }

    // Tokens.

    fn spelling(&self, token: Token) -> &'a [u8] {
        &self.text[token.start..token.end]
    }

    fn word(&self, token: Token) -> &'a str {
        str::from_utf8(self.spelling(token)).unwrap_or_default()
    }

    fn next(&mut self) -> Token {
        let token = self.peek;
        self.peek = lexer::token(self.text, token.end);
        token
    }

    fn is(&self, sign: u8) -> bool {
        self.peek.kind == Kind::Sign(sign)
    }

    fn is_word(&self, word: &str) -> bool {
        self.peek.kind == Kind::Word && self.spelling(self.peek) == word.as_bytes()
    }

    fn take(&mut self, sign: u8) -> bool {
        let is = self.is(sign);
        if is {
            self.next();
        }
        is
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is = self.is_word(word);
        if is {
            self.next();
        }
        is
    }

    fn sign(&mut self, sign: u8, after: &str) -> Outcome<()> {
        if self.take(sign) {
            return Ok(());
        }
        Err(self.expected(format_args!("'{}' {after}", char::from(sign))))
    }

    fn fault(&self, offset: usize, message: fmt::Arguments<'_>) -> SyntaxFault {
        SyntaxFault {
            offset,
            message: message.to_string(),
        }
    }

    /// That the next token is another than it should be.
    fn expected(&self, what: impl fmt::Display) -> SyntaxFault {
        let token = self.peek;
        match token.kind {
            Kind::Bad(why) => self.fault(
                token.start,
                format_args!("{why}; found {}", Quoted(self.spelling(token))),
            ),
            Kind::End => self.fault(
                token.start,
                format_args!("expected {what}, found the end of the text"),
            ),
            _ => self.fault(
                token.start,
                format_args!("expected {what}, found {}", Quoted(self.spelling(token))),
            ),
        }
    }

    // What attributes are made of.

    /// One element or more, with commas between.
    fn list<T>(&mut self, mut element: impl FnMut(&mut Self) -> Outcome<T>) -> Outcome<Vec<T>> {
        let mut elements = vec![element(self)?];
        while self.take(b',') {
            elements.push(element(self)?);
        }
        Ok(elements)
    }

    /// Any number of elements up to a bracket, which is taken too.
    fn list_until<T>(
        &mut self,
        close: u8,
        element: impl FnMut(&mut Self) -> Outcome<T>,
    ) -> Outcome<Vec<T>> {
        if self.take(close) {
            return Ok(Vec::new());
        }
        let elements = self.list(element)?;
        self.close(close)?;
        Ok(elements)
    }

    fn close(&mut self, close: u8) -> Outcome<()> {
        if self.take(close) {
            return Ok(());
        }
        Err(self.expected(format_args!("',' or '{}'", char::from(close))))
    }

    /// A part that may be written as an attribute of its own, `#sdy<axis_ref"x">` for `"x"`.
    fn field<T>(
        &mut self,
        mnemonic: &'static str,
        body: impl FnOnce(&mut Self) -> Outcome<T>,
    ) -> Outcome<T> {
        if self.peek.kind == Kind::Hash {
            return self.extended(Some(mnemonic), |parser, _| body(parser));
        }
        body(self)
    }

    /// An attribute from its `#` to its end, of a certain mnemonic or of any.
    fn extended<T>(
        &mut self,
        wanted: Option<&'static str>,
        body: impl FnOnce(&mut Self, Token) -> Outcome<T>,
    ) -> Outcome<T> {
        let hash = self.peek;
        let identifier = &self.spelling(hash)[1..];
        let opens = self.text.get(hash.end) == Some(&b'<');
        let dot = identifier.iter().position(|&byte| byte == b'.');
        let dialect = &identifier[..dot.unwrap_or(identifier.len())];
        if dialect != b"sdy" {
            return Err(self.fault(
                hash.start,
                format_args!(
                    "expected an attribute of the dialect sdy, found {}; aliases and other dialects \
                     have no place here",
                    Quoted(self.spelling(hash))
                ),
            ));
        }
        if !opens {
            return Err(self.fault(
                hash.end,
                format_args!("'<' has to follow {} at once", Quoted(self.spelling(hash))),
            ));
        }
        let Some(dot) = dot else {
            // The long form, `#sdy<mesh<[]>>`.
            self.next();
            self.next();
            let mnemonic = self.mnemonic(wanted)?;
            let value = body(self, mnemonic)?;
            if self.peek.kind != Kind::Sign(b'>') {
                let token = self.peek;
                return Err(self.fault(
                    token.start,
                    format_args!(
                        "expected the '>' that ends the attribute, since XLA would pass over what is \
                         before it; found {}",
                        Quoted(self.spelling(token))
                    ),
                ));
            }
            self.next();
            return Ok(value);
        };
        // The short form. The identifier is one token to MLIR, and then read again from the dot on.
        self.peek = lexer::token(self.text, hash.start + 1 + dot + 1);
        let mnemonic = self.mnemonic(wanted)?;
        if mnemonic.end != hash.end {
            return Err(self.fault(
                mnemonic.end,
                format_args!(
                    "expected '<' after {}, found {}",
                    Quoted(self.spelling(mnemonic)),
                    Quoted(&self.text[mnemonic.end..hash.end])
                ),
            ));
        }
        if !PRETTY.contains(&self.word(mnemonic)) {
            let word = self.word(mnemonic);
            return Err(self.fault(
                hash.end,
                format_args!("the body of {word} has no '<' of its own; write #sdy<{word}...>"),
            ));
        }
        body(self, mnemonic)
    }

    fn mnemonic(&mut self, wanted: Option<&'static str>) -> Outcome<Token> {
        let token = self.peek;
        if token.kind != Kind::Word {
            return Err(self.expected("the name of an attribute of Shardy's, as sharding"));
        }
        let word = self.spelling(token);
        match wanted {
            Some(wanted) if word != wanted.as_bytes() => Err(self.fault(
                token.start,
                format_args!(
                    "expected the attribute {wanted} here, found {}",
                    Quoted(word)
                ),
            )),
            None if !MNEMONICS.iter().any(|known| known.as_bytes() == word) => Err(self.fault(
                token.start,
                format_args!(
                    "Shardy has no attribute {}; it has {}",
                    Quoted(word),
                    MNEMONICS.join(", ")
                ),
            )),
            _ => Ok(self.next()),
        }
    }

    fn integer(&mut self, what: &str) -> Outcome<i64> {
        let start = self.peek.start;
        let negative = self.take(b'-');
        let token = self.peek;
        if token.kind != Kind::Integer {
            return Err(self.expected(format_args!("{what}, an integer")));
        }
        let spelling = self.word(token);
        let value = match spelling.strip_prefix("0x") {
            Some(digits) => i128::from_str_radix(digits, 16),
            None => spelling.parse::<i128>(),
        };
        let value = value
            .ok()
            .map(|value| if negative { -value } else { value })
            .and_then(|value| i64::try_from(value).ok());
        let Some(value) = value else {
            return Err(self.fault(
                start,
                format_args!(
                    "expected {what} from -2^63 to 2^63 - 1, found {}",
                    Quoted(&self.text[start..token.end])
                ),
            ));
        };
        self.next();
        Ok(value)
    }

    /// The name of a mesh or an axis, out of a string or a symbol.
    fn name(&mut self, what: &str, spelling: &[u8]) -> Outcome<String> {
        let start = self.peek.start;
        let name = match spelling.first() {
            Some(b'"') => lexer::unescape(spelling),
            _ => spelling.to_vec(),
        };
        if let Some(byte) = names::bad_byte(&name) {
            return Err(self.fault(
                start,
                format_args!(
                    "the name of {what} holds the byte 0x{byte:02x}: {}; found {}",
                    names::REMEDY,
                    Quoted(spelling)
                ),
            ));
        }
        self.next();
        Ok(String::from_utf8(name).unwrap_or_default())
    }

    fn axis_name(&mut self) -> Outcome<String> {
        if self.peek.kind != Kind::String {
            return Err(self.expected("the name of an axis in quotes, as \"x\""));
        }
        self.name("an axis", self.spelling(self.peek))
    }

    // Meshes and axes.

    fn mesh_axis(&mut self) -> Outcome<MeshAxis> {
        let name = self.axis_name()?;
        self.sign(b'=', "after the name of an axis")?;
        let size = self.integer("the size of an axis")?;
        Ok(MeshAxis { name, size })
    }

    fn mesh(&mut self) -> Outcome<Mesh> {
        self.sign(b'<', "before a mesh")?;
        self.sign(b'[', "before the axes of a mesh")?;
        let axes = self.list_until(b']', |parser| parser.field("mesh_axis", Self::mesh_axis))?;
        let mut device_ids = Vec::new();
        if self.take(b',') {
            if !self.take_word("device_ids") {
                return Err(self.expected("device_ids"));
            }
            self.sign(b'=', "after device_ids")?;
            self.sign(b'[', "before the ids of devices")?;
            device_ids = self.list(|parser| parser.integer("the id of a device"))?;
            self.close(b']')?;
        }
        if !self.take(b'>') {
            return Err(self.expected("',' and device_ids=[...], or '>'"));
        }
        let mut mesh = Mesh { axes, device_ids };
        if mesh.lists_devices_in_order() {
            mesh.device_ids.clear();
        }
        Ok(mesh)
    }

    fn sub_axis(&mut self) -> Outcome<SubAxis> {
        self.sign(b'(', "before the pre-size of a sub-axis, as in \"x\":(1)2")?;
        let pre_size = self.integer("the pre-size of a sub-axis")?;
        self.sign(b')', "after the pre-size of a sub-axis")?;
        let size = self.integer("the size of a sub-axis")?;
        Ok(SubAxis { pre_size, size })
    }

    fn axis_ref(&mut self) -> Outcome<AxisRef> {
        let name = self.axis_name()?;
        let sub_axis = match self.take(b':') {
            true => Some(self.field("sub_axis_info", Self::sub_axis)?),
            false => None,
        };
        Ok(AxisRef { name, sub_axis })
    }

    fn axis_refs(&mut self) -> Outcome<Vec<AxisRef>> {
        self.list(|parser| parser.field("axis_ref", Self::axis_ref))
    }

    fn manual_axes(&mut self) -> Outcome<ManualAxes> {
        self.sign(b'{', "before the manual axes")?;
        let names = self.list_until(b'}', Self::axis_name)?;
        Ok(ManualAxes { names })
    }

    // Shardings.

    fn dimension_sharding(&mut self) -> Outcome<DimensionSharding> {
        self.sign(b'{', "before the axes of a dimension")?;
        let mut sharding = DimensionSharding::default();
        while !self.take(b'}') {
            if !sharding.axes.is_empty() && !self.take(b',') {
                return Err(self.expected("',' or '}'"));
            }
            if self.take(b'?') {
                sharding.open = true;
                self.sign(b'}', "after '?', which is last in a dimension")?;
                break;
            }
            if self.peek.kind != Kind::String {
                return Err(self.expected("the name of an axis in quotes, or '?' at the end"));
            }
            sharding.axes.push(self.axis_ref()?);
        }
        if self.peek.kind == Kind::Word {
            sharding.priority = Some(self.priority()?);
        }
        Ok(sharding)
    }

    fn priority(&mut self) -> Outcome<i64> {
        let token = self.next();
        let wrong = |why: &str| {
            self.fault(
                token.start,
                format_args!(
                    "a priority is p and a number, as p0 or p12{why}; found {}",
                    Quoted(self.spelling(token))
                ),
            )
        };
        let digits = match self.word(token).strip_prefix('p') {
            Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits
            }
            _ => return Err(wrong("")),
        };
        if digits.len() > 1 && digits.starts_with('0') {
            return Err(wrong(", without zeros before it"));
        }
        digits
            .parse()
            .map_err(|_| wrong(", which is at most 2^63 - 1"))
    }

    fn mesh_ref(&mut self) -> Outcome<MeshRef> {
        if self.take_word("mesh") {
            return Ok(MeshRef::Inline(self.field("mesh", Self::mesh)?));
        }
        if self.peek.kind != Kind::Symbol {
            return Err(self.expected("a mesh, as @mesh or mesh<[\"x\"=2]>"));
        }
        let start = self.peek.start;
        let name = self.name("a mesh", &self.spelling(self.peek)[1..])?;
        if name.is_empty() {
            return Err(self.fault(
                start,
                format_args!("XLA ends the process over a mesh whose name is empty; name it"),
            ));
        }
        if self.is(b':') {
            return Err(self.expected("',' after the mesh, whose name is one symbol"));
        }
        Ok(MeshRef::Name(name))
    }

    fn sharding(&mut self) -> Outcome<Sharding> {
        self.sign(b'<', "before a sharding")?;
        let mesh = self.mesh_ref()?;
        self.sign(b',', "after the mesh")?;
        self.sign(b'[', "before the shardings of the dimensions")?;
        let dimensions = self.list_until(b']', |parser| {
            parser.field("dimension_sharding", Self::dimension_sharding)
        })?;
        let mut sharding = Sharding {
            mesh,
            dimensions,
            replicated: Vec::new(),
            unreduced: Vec::new(),
            reduction: Reduction::Sum,
        };
        while self.take(b',') {
            let token = self.peek;
            if self.take_word("replicated") {
                self.once(token, sharding.replicated.is_empty())?;
                self.sign(b'=', "after replicated")?;
                self.sign(b'{', "before the replicated axes")?;
                sharding.replicated = self.axis_refs()?;
                self.close(b'}')?;
            } else if self.take_word("unreduced") {
                self.once(token, sharding.unreduced.is_empty())?;
                // Without it, PJRT 0.115 reads the list all the same.
                self.sign(b'=', "after unreduced, which PJRT 0.106 needs")?;
                sharding.reduction = self.reduction()?;
                self.sign(b'{', "before the unreduced axes")?;
                sharding.unreduced = self.axis_refs()?;
                self.close(b'}')?;
            } else {
                return Err(self.expected("replicated={...} or unreduced={...}"));
            }
        }
        if !self.take(b'>') {
            return Err(self.expected("',' and replicated={...} or unreduced={...}, or '>'"));
        }
        Ok(sharding)
    }

    fn once(&self, token: Token, is_first: bool) -> Outcome<()> {
        if is_first {
            return Ok(());
        }
        Err(self.fault(
            token.start,
            format_args!(
                "{} is given twice; list all its axes at once",
                self.word(token)
            ),
        ))
    }

    fn reduction(&mut self) -> Outcome<Reduction> {
        if self.take_word("max") {
            return Ok(Reduction::Max);
        }
        if self.take_word("min") {
            return Ok(Reduction::Min);
        }
        if self.is_word("sum") {
            return Err(self.fault(
                self.peek.start,
                format_args!(
                    "PJRT 0.106 does not read the word sum here, which is what unreduced={{...}} means \
                     without it; leave it out"
                ),
            ));
        }
        if self.peek.kind == Kind::Word {
            return Err(self.expected("'{', or max or min"));
        }
        Ok(Reduction::Sum)
    }

    fn sharding_per_value(&mut self) -> Outcome<ShardingPerValue> {
        self.sign(b'<', "before the shardings")?;
        self.sign(b'[', "before the shardings")?;
        let shardings = self.list_until(b']', |parser| parser.field("sharding", Self::sharding))?;
        self.sign(b'>', "after the shardings")?;
        Ok(ShardingPerValue { shardings })
    }

    // Sharding rules.

    /// The factor symbol in a word from a byte of it on, and how many bytes it has.
    fn factor(&self, token: Token, at: usize) -> Outcome<(usize, usize)> {
        // Bytes, since to look at the word as text takes its length, and a word has many symbols.
        let word = self.spelling(token);
        let symbols = &word[at..];
        let wrong = |why: &str, length: usize| {
            let found = &symbols[..length.min(symbols.len())];
            let rest = printer::from_fn(|formatter| match found.len() == word.len() {
                true => Ok(()),
                false => write!(formatter, " in {}", Quoted(word)),
            });
            self.fault(
                token.start + at,
                format_args!(
                    "factor symbols are the letters i to z, then z_1, z_2, ...{why}; found {}{rest}",
                    Quoted(found)
                ),
            )
        };
        let Some(numbered) = symbols.strip_prefix(b"z_") else {
            return match symbols.first() {
                Some(letter @ b'i'..=b'z') => Ok((usize::from(letter - b'i'), 1)),
                _ => Err(wrong("", 1)),
            };
        };
        let digits = numbered.iter().take_while(|b| b.is_ascii_digit()).count();
        let length = "z_".len() + digits;
        let digits = &numbered[..digits];
        match digits.first() {
            None => return Err(wrong(", with a number after z_", length)),
            Some(b'0') => {
                return Err(wrong(
                    ", numbered from 1 and without zeros before the number",
                    length,
                ))
            }
            Some(_) => {}
        }
        // XLA's own index overflows beyond this.
        let index = digits
            .iter()
            .try_fold(0i64, |number, digit| {
                number.checked_mul(10)?.checked_add(i64::from(digit - b'0'))
            })
            .and_then(|number| number.checked_add(printer::INDEX_OF_Z as i64))
            .and_then(|index| usize::try_from(index).ok());
        match index {
            Some(index) => Ok((index, length)),
            None => Err(wrong(", numbered up to 2^63 - 18", length)),
        }
    }

    fn dim_mapping(&mut self) -> Outcome<DimMapping> {
        let mut mapping = DimMapping::default();
        if self.peek.kind != Kind::Word {
            // The verifier has the words for a dimension without factors.
            return Ok(mapping);
        }
        let token = self.next();
        let mut at = 0;
        while at < token.end - token.start {
            let (factor, length) = self.factor(token, at)?;
            mapping.factors.push(factor);
            at += length;
        }
        Ok(mapping)
    }

    fn tensor_mapping(&mut self) -> Outcome<TensorMapping> {
        self.sign(b'[', "before the factors of a tensor")?;
        if self.take(b']') {
            return Ok(TensorMapping::default());
        }
        let dimensions = self.list(|parser| parser.field("dim_mapping", Self::dim_mapping))?;
        if self.peek.kind == Kind::Word {
            return Err(
                self.expected("',' or ']', since the factors of one dimension are one word")
            );
        }
        self.close(b']')?;
        Ok(TensorMapping { dimensions })
    }

    fn tensor_mappings(&mut self, of: &str) -> Outcome<Vec<TensorMapping>> {
        if self.is(b')') {
            return Err(self.fault(
                self.peek.start,
                format_args!(
                    "the rule maps no {of}; only an operation with operands and results has a rule, and \
                     a scalar is mapped as []"
                ),
            ));
        }
        let mappings = self.list(|parser| parser.field("tensor_mapping", Self::tensor_mapping))?;
        self.close(b')')?;
        Ok(mappings)
    }

    fn sharding_rule(&mut self) -> Outcome<ShardingRule> {
        self.sign(b'<', "before a sharding rule")?;
        self.sign(b'(', "before the mappings of the operands")?;
        let operands = self.tensor_mappings("operands")?;
        if self.peek.kind != Kind::Arrow {
            return Err(self.expected("'->' before the mappings of the results"));
        }
        self.next();
        self.sign(b'(', "before the mappings of the results")?;
        let results = self.tensor_mappings("results")?;
        let mut rule = ShardingRule {
            operands,
            results,
            factor_sizes: self.factor_sizes()?,
            ..ShardingRule::default()
        };
        let lists = [
            ("reduction", &mut rule.reduction),
            ("need_replication", &mut rule.need_replication),
            ("permutation", &mut rule.permutation),
            ("blocked_propagation", &mut rule.blocked_propagation),
        ];
        for (name, factors) in lists {
            if self.take_word(name) {
                *factors = self.factor_list(name)?;
            }
        }
        if self.take(b',') {
            if !self.take_word("custom") {
                return Err(self.expected("custom after ','"));
            }
            rule.custom = true;
        }
        if !self.take(b'>') {
            return Err(self.expected(
                "'>', or what may come before it in this order: {i=2, ...} reduction={...} \
                 need_replication={...} permutation={...} blocked_propagation={...}, custom",
            ));
        }
        Ok(rule)
    }

    /// The list in braces, which may be missing as a whole.
    fn braced<T>(&mut self, element: impl FnMut(&mut Self) -> Outcome<T>) -> Outcome<Vec<T>> {
        match self.take(b'{') {
            true => self.list_until(b'}', element),
            false => Ok(Vec::new()),
        }
    }

    fn factor_sizes(&mut self) -> Outcome<Vec<i64>> {
        let mut expected = 0;
        self.braced(|parser| {
            let token = parser.peek;
            if token.kind != Kind::Word {
                return Err(parser.expected(format_args!(
                    "the size of the factor {0}, as {0}=2",
                    factor_symbol(expected)
                )));
            }
            let symbols = parser.word(token);
            let (factor, length) = parser.factor(token, 0)?;
            if factor != expected || length != symbols.len() {
                return Err(parser.fault(
                    token.start,
                    format_args!(
                        "the sizes of the factors are given one by one and in order, i, j, k, ...; \
                         expected \"{}\", found {}",
                        factor_symbol(expected),
                        Quoted(symbols.as_bytes())
                    ),
                ));
            }
            parser.next();
            parser.sign(b'=', "after the symbol of a factor")?;
            expected += 1;
            parser.integer("the size of a factor")
        })
    }

    fn factor_list(&mut self, name: &str) -> Outcome<Vec<usize>> {
        self.sign(b'=', &format!("after {name}"))?;
        self.braced(|parser| {
            let token = parser.peek;
            if token.kind != Kind::Word {
                return Err(parser.expected("the symbol of a factor, as i"));
            }
            let symbols = parser.word(token);
            let (factor, length) = parser.factor(token, 0)?;
            if length != symbols.len() {
                return Err(parser.fault(
                    token.start + length,
                    format_args!(
                        "XLA would pass over all but the first factor of {}; write the factors of \
                         {name} with commas between",
                        Quoted(symbols.as_bytes()),
                    ),
                ));
            }
            parser.next();
            Ok(factor)
        })
    }

    // Collectives and propagation.

    fn axis_ref_list(&mut self) -> Outcome<AxisRefList> {
        self.sign(b'{', "before a list of axes")?;
        let axes = self.list_until(b'}', |parser| parser.field("axis_ref", Self::axis_ref))?;
        Ok(AxisRefList { axes })
    }

    fn axis_ref_lists(&mut self) -> Outcome<AxisRefLists> {
        self.sign(b'[', "before the lists of axes")?;
        let lists = self.list_until(b']', |parser| {
            parser.field("axis_ref_list", Self::axis_ref_list)
        })?;
        Ok(AxisRefLists { lists })
    }

    fn all_to_all(&mut self) -> Outcome<AllToAll> {
        self.sign(b'{', "before the axes of an all-to-all")?;
        let axes = self.axis_refs()?;
        self.close(b'}')?;
        self.sign(b':', "after the axes of an all-to-all")?;
        let source_dimension = self.integer("the source dimension")?;
        if self.peek.kind != Kind::Arrow {
            return Err(self.expected("'->' between the dimensions of an all-to-all"));
        }
        self.next();
        let target_dimension = self.integer("the target dimension")?;
        Ok(AllToAll {
            axes,
            source_dimension,
            target_dimension,
        })
    }

    fn all_to_all_list(&mut self) -> Outcome<AllToAllList> {
        self.sign(b'[', "before the moves of an all-to-all")?;
        let moves = self.list_until(b']', |parser| {
            parser.field("all_to_all_param", Self::all_to_all)
        })?;
        Ok(AllToAllList { moves })
    }

    fn edge_value(&mut self) -> Outcome<EdgeValue> {
        let token = self.peek;
        let role = match (token.kind, self.spelling(token)) {
            (Kind::Word, b"operand") | (Kind::String, b"\"operand\"") => Role::Operand,
            (Kind::Word, b"result") | (Kind::String, b"\"result\"") => Role::Result,
            _ => return Err(self.expected("a value, as operand-0 or result-0")),
        };
        self.next();
        self.sign(b'-', "between the kind of a value and its index")?;
        let index = self.integer("the index of a value")?;
        Ok(EdgeValue { role, index })
    }

    fn axis_propagation(&mut self) -> Outcome<AxisPropagation> {
        self.sign(b'{', "before the propagation along an axis")?;
        let axis = self.field("axis_ref", Self::axis_ref)?;
        self.sign(b'=', "after the axis")?;
        let source = self.field("edge_value_ref", Self::edge_value)?;
        if self.peek.kind != Kind::Arrow {
            return Err(self.expected("'->' between the source and the targets"));
        }
        self.next();
        self.sign(b'[', "before the targets")?;
        let targets = self.list(|parser| parser.field("edge_value_ref", Self::edge_value))?;
        self.close(b']')?;
        self.close(b'}')?;
        Ok(AxisPropagation {
            axis,
            source,
            targets,
        })
    }

    fn propagation_step(&mut self) -> Outcome<PropagationStep> {
        self.sign(b'{', "before a step of propagation")?;
        if !self.take_word("step") {
            return Err(self.expected("a step, as step-0"));
        }
        self.sign(b'-', "between step and its index")?;
        let index = self.integer("the index of a step")?;
        self.sign(b'=', "after the step")?;
        self.sign(b'[', "before the axes of a step")?;
        let axes = self
            .list(|parser| parser.field("axis_to_propagation_details", Self::axis_propagation))?;
        self.close(b']')?;
        self.close(b'}')?;
        Ok(PropagationStep { index, axes })
    }

    fn propagation_edges(&mut self) -> Outcome<PropagationEdges> {
        self.sign(b'<', "before the steps of propagation")?;
        self.sign(b'[', "before the steps of propagation")?;
        let steps =
            self.list(|parser| parser.field("propagation_one_step", Self::propagation_step))?;
        self.close(b']')?;
        self.sign(b'>', "after the steps of propagation")?;
        Ok(PropagationEdges { steps })
    }

    /// The body of an attribute whose mnemonic was just read.
    fn any(&mut self, mnemonic: Token) -> Outcome<Attribute> {
        Ok(match self.word(mnemonic) {
            "manual_axes" => self.manual_axes()?.into(),
            "mesh_axis" => self.mesh_axis()?.into(),
            "mesh" => self.mesh()?.into(),
            "sub_axis_info" => self.sub_axis()?.into(),
            "axis_ref" => self.axis_ref()?.into(),
            "dimension_sharding" => self.dimension_sharding()?.into(),
            "sharding" => self.sharding()?.into(),
            "sharding_per_value" => self.sharding_per_value()?.into(),
            "dim_mapping" => self.dim_mapping()?.into(),
            "tensor_mapping" => self.tensor_mapping()?.into(),
            "op_sharding_rule" => self.sharding_rule()?.into(),
            "axis_ref_list" => self.axis_ref_list()?.into(),
            "list_of_axis_ref_lists" => self.axis_ref_lists()?.into(),
            "all_to_all_param" => self.all_to_all()?.into(),
            "all_to_all_param_list" => self.all_to_all_list()?.into(),
            "edge_value_ref" => self.edge_value()?.into(),
            "axis_to_propagation_details" => self.axis_propagation()?.into(),
            "propagation_one_step" => self.propagation_step()?.into(),
            _ => self.propagation_edges()?.into(),
        })
    }
}
