//! Shardy's rules (`verifiers.cc`), of which Shardy tells the first that is broken.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display, Formatter};

use super::fault::{Count, Faults, Quoted};
use super::names;
use super::printer::factor_symbol;
use super::*;

impl Attribute {
    /// What Shardy checks as soon as it has read an attribute, wherever it stands: meshes, and the
    /// steps of propagation edges.
    pub fn verify(&self) -> Vec<Fault> {
        match self {
            Self::MeshAxis(axis) => {
                let mut faults = Faults::default();
                axis.check("the axis", &mut faults);
                faults.into_vec()
            }
            Self::Mesh(mesh) => mesh.verify(),
            Self::Sharding(sharding) => {
                let mut faults = Faults::default();
                sharding.check_inline_mesh("", &mut faults);
                faults.into_vec()
            }
            Self::ShardingPerValue(value) => {
                let mut faults = Faults::default();
                for (index, sharding) in value.shardings.iter().enumerate() {
                    sharding.check_inline_mesh(format_args!("sharding {index}, "), &mut faults);
                }
                faults.into_vec()
            }
            Self::PropagationEdges(edges) => edges.verify(),
            _ => Vec::new(),
        }
    }
}

fn check_name(name: &str, place: impl Display, faults: &mut Faults) {
    if let Some(byte) = names::bad_byte(name.as_bytes()) {
        faults.add(
            place,
            format_args!(
                "the name {} holds the byte 0x{byte:02x}: {}",
                Quoted(name.as_bytes()),
                names::REMEDY
            ),
        );
    }
}

impl MeshAxis {
    fn check(&self, place: impl Display, faults: &mut Faults) {
        if self.size < 1 {
            faults.add(
                &place,
                format_args!("its size is {}; a size is 1 or more", self.size),
            );
        }
        check_name(&self.name, &place, faults);
    }
}

impl Mesh {
    /// Whether the devices are listed as they would be without a list.
    pub(super) fn lists_devices_in_order(&self) -> bool {
        !self.axes.is_empty()
            && self
                .device_count()
                .is_some_and(|count| i64::try_from(self.device_ids.len()) == Ok(count))
            && self
                .device_ids
                .iter()
                .zip(0..)
                .all(|(&id, index)| id == index)
    }

    /// Every rule that the mesh breaks.
    pub fn verify(&self) -> Vec<Fault> {
        let mut faults = Faults::default();
        self.check("", &mut faults);
        faults.into_vec()
    }

    fn check(&self, prefix: impl Display, faults: &mut Faults) {
        let mesh = format_args!("{prefix}the mesh");
        let mut seen = HashSet::new();
        for axis in &self.axes {
            let place = format_args!("{prefix}axis {}", Quoted(axis.name.as_bytes())).to_string();
            axis.check(&place, faults);
            if !seen.insert(&axis.name) {
                faults.add(
                    &place,
                    format_args!("the mesh has two axes of this name; name each differently"),
                );
            }
        }
        for &id in self.device_ids.iter().filter(|&&id| id < 0) {
            faults.add(
                format_args!("{prefix}device_ids"),
                format_args!("{id} is no device; an id is 0 or more"),
            );
        }
        if self.axes.is_empty() {
            if self.device_ids.len() > 1 {
                faults.add(
                    mesh,
                    format_args!(
                        "it has no axes and {}; without axes it has one device at most",
                        Count(self.device_ids.len(), "device")
                    ),
                );
            }
            return;
        }
        let Some(count) = self.device_count() else {
            faults.add(
                mesh,
                format_args!(
                    "its axes span more than 2^63 - 1 devices, over which XLA may end the process; \
                     make them smaller"
                ),
            );
            return;
        };
        if self.device_ids.is_empty() {
            return;
        }
        let listed = self.device_ids.len();
        if usize::try_from(count) != Ok(listed) {
            faults.add(
                format_args!("{prefix}device_ids"),
                format_args!(
                    "{} listed and the axes span {count}; list every device once, or none",
                    Are(listed, "device")
                ),
            );
            return;
        }
        let mut seen = vec![false; listed];
        for &id in &self.device_ids {
            let Some(seen) = usize::try_from(id).ok().and_then(|id| seen.get_mut(id)) else {
                if id >= 0 {
                    faults.add(
                        format_args!("{prefix}device_ids"),
                        format_args!(
                            "device {id} is beyond the {count} of the mesh, 0 to {}",
                            count - 1
                        ),
                    );
                }
                continue;
            };
            if std::mem::replace(seen, true) {
                faults.add(
                    format_args!("{prefix}device_ids"),
                    format_args!("device {id} is listed twice; list every device once"),
                );
            }
        }
    }
}

/// `1 device is`, `2 devices are`
struct Are(usize, &'static str);

impl Display for Are {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let verb = if self.0 == 1 { "is" } else { "are" };
        write!(formatter, "{} {verb}", Count(self.0, self.1))
    }
}

impl Sharding {
    /// Every rule that the sharding of a value breaks.
    pub fn verify(&self, shape: &TensorShape, meshes: &Meshes) -> Vec<Fault> {
        let mut faults = Faults::default();
        self.check(Some(shape), meshes, "", &mut faults);
        faults.into_vec()
    }

    fn check_inline_mesh(&self, prefix: impl Display, faults: &mut Faults) {
        if let MeshRef::Inline(mesh) = &self.mesh {
            mesh.check(prefix, faults);
        }
    }

    /// Whether no dimension is split.
    fn is_replicated(&self) -> bool {
        self.dimensions
            .iter()
            .all(|dimension| dimension.axes.is_empty())
    }

    fn has_dimensions_or_axes(&self) -> bool {
        !(self.dimensions.is_empty() && self.replicated.is_empty() && self.unreduced.is_empty())
    }

    /// The mesh, if it is known and not at fault itself.
    fn mesh<'a>(
        &'a self,
        meshes: &'a Meshes,
        prefix: impl Display,
        faults: &mut Faults,
    ) -> Option<&'a Mesh> {
        match &self.mesh {
            MeshRef::Name(name) => {
                let mesh = meshes.get(name);
                if mesh.is_none() {
                    faults.add(
                        format_args!("{prefix}the mesh"),
                        format_args!(
                            "the module has no mesh {}; {}: give it with the module's option meshes",
                            Quoted(name.as_bytes()),
                            Known("mesh", meshes.keys().map(String::as_str)),
                        ),
                    );
                }
                check_name(name, format_args!("{prefix}the mesh"), faults);
                mesh
            }
            MeshRef::Inline(mesh) => {
                mesh.check(prefix, faults);
                Some(mesh)
            }
        }
    }

    /// Without a shape the sharding is that of an operation that has no results.
    fn check(
        &self,
        shape: Option<&TensorShape>,
        meshes: &Meshes,
        prefix: &str,
        faults: &mut Faults,
    ) {
        let Some(mesh) = self.mesh(meshes, prefix, faults) else {
            return;
        };
        let place = format_args!("{prefix}the sharding");
        if mesh.is_maximal() || (shape.is_none() && self.is_replicated()) {
            if self.has_dimensions_or_axes() {
                let of = match mesh.is_maximal() {
                    true => "on a single device",
                    false => "of no value",
                };
                faults.add(
                    place,
                    format_args!(
                        "it is one {of}, which has no dimensions and no replicated or unreduced axes; \
                         write []"
                    ),
                );
            }
            return;
        }
        match shape {
            Some(TensorShape::Unranked) => {
                faults.add(
                    place,
                    format_args!(
                        "the tensor has no known rank; only tensors of a rank are sharded"
                    ),
                );
            }
            Some(TensorShape::NotATensor) | None => {
                if self.has_dimensions_or_axes() {
                    faults.add(
                        place,
                        format_args!(
                            "the value is no tensor, so it has no dimensions and no replicated or \
                             unreduced axes; write []"
                        ),
                    );
                }
                return;
            }
            Some(TensorShape::Ranked(dimensions)) if dimensions.len() != self.dimensions.len() => {
                faults.add(
                    place,
                    format_args!(
                        "it has {} and the tensor has {}; write {{}} for a dimension that is not split",
                        Count(self.dimensions.len(), "dimension"),
                        dimensions.len()
                    ),
                );
            }
            Some(TensorShape::Ranked(dimensions)) => {
                let pairs = self.dimensions.iter().zip(dimensions).enumerate();
                for (index, (sharding, size)) in pairs {
                    if size.is_none() && !sharding.axes.is_empty() {
                        faults.add(
                            format_args!("{prefix}dimension {index}"),
                            format_args!(
                                "it is split and its size is not known before the run, over which XLA \
                                 may end the process; give it a size"
                            ),
                        );
                    }
                }
            }
        }
        self.check_axes(mesh, prefix, faults);
    }

    fn check_axes(&self, mesh: &Mesh, prefix: &str, faults: &mut Faults) {
        let mut uses = AxisUses::new(mesh);
        for (index, dimension) in self.dimensions.iter().enumerate() {
            let place = format_args!("{prefix}dimension {index}");
            match dimension.priority {
                Some(priority) if priority < 0 => faults.add(
                    place,
                    format_args!("its priority is {priority}; a priority is 0 or more"),
                ),
                Some(priority) if dimension.axes.is_empty() && !dimension.open => faults.add(
                    place,
                    format_args!(
                        "it is never split, so the priority p{priority} means nothing; leave it out, \
                         or write {{?}}p{priority}"
                    ),
                ),
                _ => {}
            }
            uses.list(&dimension.axes, place, faults);
        }
        for (name, axes) in [
            ("replicated", &self.replicated),
            ("unreduced", &self.unreduced),
        ] {
            let place = format_args!("{prefix}{name}");
            uses.check_order(axes, place, faults);
            uses.list(axes, place, faults);
        }
        uses.finish(prefix, faults);
    }
}

/// The names that would be right.
struct Known<'a, I>(&'static str, I)
where
    I: Iterator<Item = &'a str> + Clone;

impl<'a, I: Iterator<Item = &'a str> + Clone> Display for Known<'a, I> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        const MOST: usize = 8;
        let mut names = self.1.clone();
        let Some(first) = names.next() else {
            return write!(formatter, "there is no {}", self.0);
        };
        write!(formatter, "there is {}", Quoted(first.as_bytes()))?;
        for name in names.by_ref().take(MOST - 1) {
            write!(formatter, ", {}", Quoted(name.as_bytes()))?;
        }
        match names.count() {
            0 => Ok(()),
            more => write!(formatter, " and {more} more"),
        }
    }
}

/// The axes of a sharding, as they are met.
struct AxisUses<'a> {
    mesh: &'a Mesh,
    /// Position and size of each axis of the mesh.
    axes: HashMap<&'a str, (usize, i64)>,
    seen: HashSet<&'a AxisRef>,
    /// In the order of the mesh, so that the faults have an order.
    sub_axes: BTreeMap<usize, Vec<(SubAxis, &'a AxisRef)>>,
}

impl<'a> AxisUses<'a> {
    fn new(mesh: &'a Mesh) -> Self {
        let axes = mesh.axes.iter().enumerate();
        Self {
            mesh,
            axes: axes
                .map(|(index, axis)| (axis.name.as_str(), (index, axis.size)))
                .collect(),
            seen: HashSet::new(),
            sub_axes: BTreeMap::new(),
        }
    }

    fn list(&mut self, list: &'a [AxisRef], place: impl Display, faults: &mut Faults) {
        let mut before: Option<&AxisRef> = None;
        for axis in list {
            let Some(&(position, _)) = self.axes.get(axis.name.as_str()) else {
                faults.add(
                    &place,
                    format_args!(
                        "the mesh has no axis {}; {}",
                        Quoted(axis.name.as_bytes()),
                        Known("axis", self.mesh.axes.iter().map(|axis| axis.name.as_str()))
                    ),
                );
                before = None;
                continue;
            };
            if !self.seen.insert(axis) {
                faults.add(
                    &place,
                    format_args!(
                        "the axis {} is used twice; use it for one dimension, or in one of the lists, \
                         once",
                        Short(axis)
                    ),
                );
            } else if let Some(sub_axis) = axis.sub_axis {
                let of_axis = self.sub_axes.entry(position).or_default();
                of_axis.push((sub_axis, axis));
            }
            if let Some(before) = before.filter(|before| merges(before, axis)) {
                faults.add(
                    &place,
                    format_args!(
                        "the sub-axes {} and {} follow each other; write them as one",
                        Short(before),
                        Short(axis)
                    ),
                );
            }
            before = Some(axis);
        }
    }

    /// Axes in the order of the mesh, and parts of one axis from the major one to the minor one.
    fn check_order(&self, list: &[AxisRef], place: impl Display, faults: &mut Faults) {
        let key = |axis: &AxisRef| {
            let &(position, _) = self.axes.get(axis.name.as_str())?;
            // A whole axis is behind the parts that begin where it does.
            let (pre_size, size) = match axis.sub_axis {
                Some(sub_axis) => (sub_axis.pre_size, Some(sub_axis.size)),
                None => (1, None),
            };
            Some((position, pre_size, size.is_none(), size))
        };
        for pair in list.windows(2) {
            if let (Some(first), Some(second)) = (key(&pair[0]), key(&pair[1])) {
                if first > second {
                    faults.add(
                        &place,
                        format_args!(
                            "{} is before {}; axes are listed in the order of the mesh, and parts of \
                             one by their pre-size",
                            Short(&pair[0]),
                            Short(&pair[1])
                        ),
                    );
                    return;
                }
            }
        }
    }

    fn finish(self, prefix: &str, faults: &mut Faults) {
        for (position, mut sub_axes) in self.sub_axes {
            let Some(axis) = self.mesh.axes.get(position) else {
                continue;
            };
            let place = format_args!("{prefix}axis {}", Quoted(axis.name.as_bytes())).to_string();
            let whole = AxisRef {
                name: axis.name.clone(),
                sub_axis: None,
            };
            if self.seen.contains(&whole) {
                faults.add(
                    &place,
                    format_args!(
                        "both the axis and a part of it are used; use the one or the other"
                    ),
                );
            }
            sub_axes.sort_by_key(|&(sub_axis, _)| sub_axis);
            let mut before: Option<(SubAxis, &AxisRef)> = None;
            for (sub_axis, used) in sub_axes {
                if !check_sub_axis(sub_axis, used, axis, &place, faults) {
                    continue;
                }
                let overlapped = before.filter(|(before, _)| {
                    before
                        .next_pre_size()
                        .is_some_and(|next| next > sub_axis.pre_size)
                });
                if let Some((_, before)) = overlapped {
                    faults.add(
                        &place,
                        format_args!(
                            "its parts {} and {} overlap; cut it into parts that do not",
                            Short(before),
                            Short(used)
                        ),
                    );
                }
                before = Some((sub_axis, used));
            }
        }
    }
}

/// Whether a part of an axis is one; says why if it is not.
fn check_sub_axis(
    sub_axis: SubAxis,
    used: &AxisRef,
    axis: &MeshAxis,
    place: &str,
    faults: &mut Faults,
) -> bool {
    let SubAxis { pre_size, size } = sub_axis;
    let mut is_one = true;
    let mut wrong = |message: fmt::Arguments<'_>| {
        is_one = false;
        faults.add(place, message);
    };
    if pre_size < 1 {
        wrong(format_args!(
            "the pre-size of {} is {pre_size}; a pre-size is 1 or more",
            Short(used)
        ));
    }
    if size < 2 {
        wrong(format_args!(
            "the size of {} is {size}; the size of a part is 2 or more",
            Short(used)
        ));
    }
    if pre_size < 1 || size < 2 {
        return false;
    }
    if size == axis.size {
        wrong(format_args!(
            "{} is as large as the axis; write the axis itself",
            Short(used)
        ));
    }
    match sub_axis.next_pre_size() {
        None => wrong(format_args!(
            "pre-size times size of {} is beyond 2^63 - 1, over which XLA may end the process; both \
             divide the size of the axis, {}",
            Short(used),
            axis.size
        )),
        Some(next) if axis.size % next != 0 => wrong(format_args!(
            "pre-size times size of {} is {next}, which does not divide the size of the axis, {}",
            Short(used),
            axis.size
        )),
        Some(_) => {}
    }
    is_one
}

/// Whether two parts of an axis are one, the first the major part.
fn merges(first: &AxisRef, second: &AxisRef) -> bool {
    first.name == second.name
        && match (first.sub_axis, second.sub_axis) {
            (Some(first), Some(second)) => first.next_pre_size() == Some(second.pre_size),
            _ => false,
        }
}

/// An axis in a message: its name cut where it is long.
struct Short<'a>(&'a AxisRef);

impl Display for Short<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", Quoted(self.0.name.as_bytes()))?;
        match self.0.sub_axis {
            Some(sub_axis) => write!(formatter, ":{sub_axis}"),
            None => Ok(()),
        }
    }
}

impl ShardingPerValue {
    /// Every rule that the shardings of an operation's operands or results break.
    ///
    /// An operation without results may have one sharding, which places the operation itself.
    pub fn verify(&self, role: Role, shapes: &[TensorShape], meshes: &Meshes) -> Vec<Fault> {
        let mut faults = Faults::default();
        if let ([sharding], []) = (self.shardings.as_slice(), shapes) {
            let mesh = match &sharding.mesh {
                MeshRef::Name(name) => meshes.get(name),
                MeshRef::Inline(mesh) => Some(mesh),
            };
            if mesh.is_some_and(Mesh::is_maximal) || sharding.is_replicated() {
                sharding.check(None, meshes, "", &mut faults);
                return faults.into_vec();
            }
        }
        if self.shardings.len() != shapes.len() {
            faults.add(
                format_args!("{role}s"),
                format_args!(
                    "there {} and {}; give each its own",
                    AreInverted(self.shardings.len(), "sharding"),
                    Count(
                        shapes.len(),
                        if role == Role::Operand {
                            "operand"
                        } else {
                            "result"
                        }
                    )
                ),
            );
        }
        for (index, sharding) in self.shardings.iter().enumerate() {
            let prefix = format!("{role} {index}, ");
            match shapes.get(index) {
                Some(shape) => sharding.check(Some(shape), meshes, &prefix, &mut faults),
                None => sharding.check_inline_mesh(&prefix, &mut faults),
            }
        }
        faults.into_vec()
    }
}

/// `is 1 sharding`, `are 2 shardings`
struct AreInverted(usize, &'static str);

impl Display for AreInverted {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let verb = if self.0 == 1 { "is" } else { "are" };
        write!(formatter, "{verb} {}", Count(self.0, self.1))
    }
}

impl ShardingRule {
    /// The lists of special factors by their keywords, in the order of the text.
    pub(super) fn lists(&self) -> [(&'static str, &[usize]); 4] {
        [
            ("reduction", &self.reduction),
            ("need_replication", &self.need_replication),
            ("permutation", &self.permutation),
            ("blocked_propagation", &self.blocked_propagation),
        ]
    }

    /// Every rule that the sharding rule of an operation breaks.
    ///
    /// Shardy does not compare the sizes of factors with those of dimensions;
    /// [`size_mismatches`](Self::size_mismatches) does.
    pub fn verify(&self, operands: &[TensorShape], results: &[TensorShape]) -> Vec<Fault> {
        let mut faults = Faults::default();
        let in_operands = self.check_values(Role::Operand, operands, &mut faults);
        let in_results = self.check_values(Role::Result, results, &mut faults);
        let used = in_operands.iter().zip(&in_results).map(|(a, b)| a | b);
        for (factor, _) in used.enumerate().filter(|(_, used)| !used) {
            faults.add(
                format_args!("factor {}", factor_symbol(factor)),
                format_args!(
                    "no operand and no result has it; map a dimension to it, or leave it out"
                ),
            );
        }
        let [reduction, need_replication, permutation, blocked] = self.lists();
        let mut kinds = HashMap::new();
        for (name, list) in [reduction, need_replication, permutation] {
            self.check_list(name, list, &mut faults);
            for &factor in list {
                let first = *kinds.entry(factor).or_insert(name);
                if first != name {
                    faults.add(
                        format_args!("{name}, factor {}", factor_symbol(factor)),
                        format_args!("it is in {first} too; a factor is in one of the two"),
                    );
                }
            }
        }
        self.check_list(blocked.0, blocked.1, &mut faults);
        for &factor in &self.reduction {
            if in_results.get(factor).copied().unwrap_or_default() {
                faults.add(
                    format_args!("reduction, factor {}", factor_symbol(factor)),
                    format_args!("a result has it; results have no factor that is summed over"),
                );
            }
        }
        faults.into_vec()
    }

    /// Checks the mappings of all operands or results, and returns which factors they have.
    fn check_values(&self, role: Role, shapes: &[TensorShape], faults: &mut Faults) -> Vec<bool> {
        let mappings = match role {
            Role::Operand => &self.operands,
            Role::Result => &self.results,
        };
        let mut seen = vec![false; self.factor_sizes.len()];
        if mappings.len() != shapes.len() {
            faults.add(
                format_args!("{role}s"),
                format_args!(
                    "the rule maps {} and the operation has {}; map each, a scalar as []",
                    mappings.len(),
                    shapes.len()
                ),
            );
        } else if mappings.is_empty() {
            faults.add(
                format_args!("{role}s"),
                format_args!(
                    "the operation has none; only one with operands and results has a rule"
                ),
            );
        }
        for (index, mapping) in mappings.iter().enumerate() {
            let value = format_args!("{role} {index}");
            match shapes.get(index) {
                Some(TensorShape::Ranked(dimensions)) => {
                    if dimensions.iter().any(Option::is_none) {
                        faults.add(
                            value,
                            format_args!(
                                "it has a dimension that is not known before the run; an operation \
                                 with a rule has none"
                            ),
                        );
                    }
                    if dimensions.len() != mapping.dimensions.len() {
                        faults.add(
                            value,
                            format_args!(
                                "the mapping {} has {} and the tensor has {}; map each dimension of \
                                 the tensor",
                                ShortMapping(mapping),
                                Count(mapping.dimensions.len(), "dimension"),
                                dimensions.len()
                            ),
                        );
                    }
                }
                Some(TensorShape::Unranked | TensorShape::NotATensor) => faults.add(
                    value,
                    format_args!(
                        "it is no tensor of a known shape; an operation with a rule has nothing else"
                    ),
                ),
                None => {}
            }
            self.check_mapping(mapping, value, &mut seen, faults);
        }
        seen
    }

    fn check_mapping(
        &self,
        mapping: &TensorMapping,
        value: impl Display,
        seen: &mut [bool],
        faults: &mut Faults,
    ) {
        let mut of_value = HashSet::new();
        for (index, dimension) in mapping.dimensions.iter().enumerate() {
            let place = format_args!("{value}, dimension {index}");
            if dimension.factors.is_empty() {
                faults.add(
                    place,
                    format_args!("it has no factor; give it one, of the size of the dimension"),
                );
            }
            for &factor in &dimension.factors {
                let place = format_args!(
                    "{value}, dimension {index}, factor {}",
                    factor_symbol(factor)
                );
                let Some(&size) = self.factor_sizes.get(factor) else {
                    faults.add(
                        place,
                        format_args!(
                            "the rule gives it no size; give {}",
                            MissingFactors(self.factor_sizes.len(), factor)
                        ),
                    );
                    continue;
                };
                seen[factor] = true;
                if !of_value.insert(factor) {
                    faults.add(
                        place,
                        format_args!("the value has it twice; a value has each factor once"),
                    );
                }
                if size == 1 && dimension.factors.len() > 1 {
                    faults.add(
                        place,
                        format_args!(
                            "its size is 1 and there are others beside it; leave it out here"
                        ),
                    );
                }
            }
        }
    }

    fn check_list(&self, name: &str, list: &[usize], faults: &mut Faults) {
        if let Some(pair) = list.windows(2).find(|pair| pair[0] > pair[1]) {
            faults.add(
                name,
                format_args!(
                    "{} is before {}; the factors are listed in order",
                    factor_symbol(pair[0]),
                    factor_symbol(pair[1])
                ),
            );
        }
        let mut seen = HashSet::new();
        for &factor in list {
            let place = format_args!("{name}, factor {}", factor_symbol(factor));
            if factor >= self.factor_sizes.len() {
                faults.add(
                    place,
                    format_args!(
                        "the rule gives it no size; give {}",
                        MissingFactors(self.factor_sizes.len(), factor)
                    ),
                );
            }
            if !seen.insert(factor) {
                faults.add(place, format_args!("it is listed twice; list it once"));
            }
        }
    }
}

/// Which factors lack a size, of those up to one that is used.
struct MissingFactors(usize, usize);

impl Display for MissingFactors {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self(first, last) = *self;
        match first == last {
            true => write!(formatter, "one to {}", factor_symbol(first)),
            false => write!(
                formatter,
                "one to each factor from {} to {}",
                factor_symbol(first),
                factor_symbol(last)
            ),
        }
    }
}

/// A mapping in a message, cut where it is long.
struct ShortMapping<'a>(&'a TensorMapping);

impl Display for ShortMapping<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        const MOST: usize = 16;
        let dimensions = &self.0.dimensions;
        if dimensions.len() <= MOST && dimensions.iter().all(|d| d.factors.len() <= MOST) {
            return write!(formatter, "{}", self.0);
        }
        formatter.write_str("of this value")
    }
}

impl PropagationEdges {
    /// Every rule that the edges break on their own.
    pub fn verify(&self) -> Vec<Fault> {
        let mut faults = Faults::default();
        let mut seen = HashSet::new();
        for step in &self.steps {
            let place = format_args!("step {}", step.index);
            if step.index < 0 {
                faults.add(place, format_args!("the index of a step is 0 or more"));
            }
            if !seen.insert(step.index) {
                faults.add(
                    place,
                    format_args!("there are two steps of this index; join them"),
                );
            }
            for along in &step.axes {
                let place = format_args!("{place}, axis {}", Short(&along.axis));
                let mut targets = HashSet::new();
                for target in &along.targets {
                    if *target == along.source {
                        faults.add(
                            place,
                            format_args!(
                                "{target} is both the source and a target; leave the target out"
                            ),
                        );
                    }
                    if !targets.insert(target) {
                        faults.add(
                            place,
                            format_args!("the target {target} is listed twice; list it once"),
                        );
                    }
                }
            }
        }
        faults.into_vec()
    }
}
