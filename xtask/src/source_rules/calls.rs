//! Which files of a library call methods that other files define.
//!
//! Looked at are types with inherent `impl` blocks outside of their own file, and of their methods and
//! constants those that one file alone defines. The types of expressions are not known here, so a call
//! counts only where it can hardly mean another: through `self` or `Self` in a block of the type,
//! through the type's path, or by a name that all libraries together define once and std does not, in a
//! file that imports the type's, by way of others or not.
//!
//! Blocks that a macro writes are not seen.

use super::LIBRARIES;
use super::impls::{Impl, defined, ident, impls};
use super::imports::{Crate, Path};
use super::needs::{Needs, reachable};
use super::source::{Kind, Named, Source};
use std::collections::{BTreeMap, BTreeSet};

/// Names that methods of std's pointers, cells and collections have, too: they tell no type, even where
/// the libraries define them once.
#[rustfmt::skip]
const OF_STD: [&str; 62] = [
    "abort", "append", "as_mut", "as_mut_ptr", "as_mut_slice", "as_ptr", "as_ref", "as_slice", "borrow",
    "capacity", "cast", "chunks", "clear", "concat", "contains", "copy_from_slice", "drain", "extend",
    "fill", "finish", "first", "flush", "get", "get_mut", "insert", "into_boxed_slice", "into_inner", "is_empty",
    "iter", "iter_mut", "join", "kind", "last", "len", "load", "lock", "map", "offset", "pop", "push",
    "read", "remove", "replace", "reserve", "reserve_exact", "resize", "retain", "set", "shrink_to",
    "shrink_to_fit", "sort", "split_at", "split_at_mut", "split_off", "store", "swap", "take", "to_vec",
    "truncate", "update", "wait", "write",
];

/// The file that defines a type, and the type's name.
type Type<'a> = (&'a str, String);

/// A file of a crate, with its `impl` blocks and the types that these are for.
struct File<'a> {
    module: Path,
    source: &'a Source,
    blocks: Vec<(Impl<'a>, Type<'a>)>,
}

/// The methods of a crate's types that one file alone defines, with that file.
struct Methods<'a> {
    of: BTreeMap<Type<'a>, BTreeMap<&'a str, &'a str>>,
    /// Those whose name tells the type.
    by_name: BTreeMap<&'a str, Type<'a>>,
}

/// Each file of the libraries that is not of tests, with the files whose methods it calls.
pub(super) fn calls<'a>(sources: &'a [Source], imported: &Needs<'a>) -> Needs<'a> {
    let telling = telling_names(sources);
    let mut all = Needs::new();
    for folder in LIBRARIES {
        let whole = Crate::new(sources, folder);
        let files: Vec<File<'_>> =
            whole.files.iter().map(|(module, source)| File::new(&whole, module, source)).collect();
        let methods = Methods::new(&files, &telling);
        for file in &files {
            let path: &str = &file.source.path;
            // What imports a type in no way has no value of it.
            let mut known = reachable(imported, path);
            known.insert(path);
            let mut called: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            let by_receiver = file.by_receiver(&methods, &known);
            for (other, method) in by_receiver.into_iter().chain(file.by_path(&whole, &methods)) {
                called.entry(other).or_default().insert(method);
            }
            called.remove(path);
            all.insert(path, called);
        }
    }
    all
}

/// The names that all libraries define once, for a method or another function, and std does not.
fn telling_names(sources: &[Source]) -> BTreeSet<&str> {
    let (mut once, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for source in sources.iter().filter(|source| source.is_of_libraries() && !source.is_tests()) {
        for at in (0..source.tokens.len()).filter(|&at| source.tokens[at].is("fn")) {
            let Some(name) = ident(source, at + 1) else { continue };
            if source.tokens[at].in_tests {
                continue;
            }
            if seen.insert(name) {
                once.insert(name);
            } else {
                once.remove(name);
            }
        }
    }
    once.retain(|name| !OF_STD.contains(name));
    once
}

impl<'a> Methods<'a> {
    fn new(files: &[File<'a>], telling: &BTreeSet<&str>) -> Self {
        let mut types: BTreeMap<&Type<'a>, BTreeMap<&'a str, BTreeSet<&'a str>>> = BTreeMap::new();
        for file in files {
            for (block, of) in file.blocks.iter().filter(|(block, _)| block.is_inherent) {
                for method in defined(file.source, block) {
                    let files = types.entry(of).or_default().entry(method).or_default();
                    files.insert(&file.source.path);
                }
            }
        }
        let mut methods = Self { of: BTreeMap::new(), by_name: BTreeMap::new() };
        for (of, all) in types {
            if all.values().flatten().all(|file| *file == of.0) {
                continue;
            }
            let alone = |(method, files): (&'a str, BTreeSet<&'a str>)| {
                let file = files.first().filter(|_| files.len() == 1)?;
                Some((method, *file))
            };
            let alone: BTreeMap<&str, &str> = all.into_iter().filter_map(alone).collect();
            let clear = alone.keys().filter(|method| telling.contains(*method));
            methods.by_name.extend(clear.map(|method| (*method, of.clone())));
            methods.of.insert(of.clone(), alone);
        }
        methods
    }
}

impl<'a> File<'a> {
    fn new(whole: &Crate<'a>, module: &Path, source: &'a Source) -> Self {
        let typed = |block: Impl<'a>| {
            let of = whole.type_at(module, &block.of, block.depth)?;
            Some((block, of))
        };
        let blocks = impls(source).into_iter().filter_map(typed).collect();
        Self { module: module.clone(), source, blocks }
    }

    /// The type that `self` and `Self` mean at a token.
    fn own_type(&self, at: usize) -> Option<&Type<'a>> {
        self.blocks.iter().rev().find(|(block, _)| block.body.contains(&at)).map(|(_, of)| of)
    }

    /// The files and methods of `self.name(` and `other.name(`, the latter where `known` has the type's file.
    fn by_receiver(
        &self,
        methods: &Methods<'a>,
        known: &BTreeSet<&str>,
    ) -> Vec<(&'a str, &'a str)> {
        let tokens = &self.source.tokens;
        let by_name = |name: &str| methods.by_name.get(name).filter(|of| known.contains(of.0));
        let file_of = |of, name: &str| methods.of.get(of)?.get(name);
        let call = |at: usize| {
            let name = ident(self.source, at)?;
            let is_called = matches!(tokens.get(at + 1)?.kind, Kind::Open('(') | Kind::Punct(':'));
            let is_method = tokens[at - 1].is_punct('.') && !tokens[at - 2].is_punct('.');
            if !is_called || !is_method || tokens[at].in_tests {
                return None;
            }
            let own = self.own_type(at).filter(|_| tokens[at - 2].is("self"));
            let file = own.and_then(|own| file_of(own, name));
            Some((*file.or_else(|| file_of(by_name(name)?, name))?, name))
        };
        (2..tokens.len()).filter_map(call).collect()
    }

    /// The files and methods of `Self::name` and `Type::name`, called or handed on.
    fn by_path(&self, whole: &Crate<'a>, methods: &Methods<'a>) -> Vec<(&'a str, &'a str)> {
        let method = |named: Named<'a>| {
            let (name, of) = named.segments.split_last()?;
            let of = match of {
                _ if named.last.in_tests => return None,
                ["Self"] => self.own_type(named.start)?.clone(),
                _ => whole.type_at(&self.module, of, named.last.depth)?,
            };
            Some((*methods.of.get(&of)?.get(name)?, *name))
        };
        self.source.names().into_iter().filter_map(method).collect()
    }
}
