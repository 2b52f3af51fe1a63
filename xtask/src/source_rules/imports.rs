//! Which files of a library import which.
//!
//! A file imports another when it names an item that the other defines. A re-export (`pub use`) is no
//! import of its own: it is a name, and a path that goes through it leads to the file of the item. So
//! a folder's `mod.rs` may re-export what its children define. Modules of tests import what they need.

use super::LIBRARIES;
use super::layers::modules;
use super::source::{Kind, Named, Source};
use std::collections::{BTreeMap, BTreeSet};

/// How many re-exports a path may go through.
const LONGEST_CHAIN: usize = 16;

pub(super) type Path = Vec<String>;

/// Files with the files that they import.
pub(super) type Imports<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// The files of a crate by their module paths, with what each of them re-exports or imports by name.
pub(super) struct Crate<'a> {
    pub(super) files: BTreeMap<Path, &'a Source>,
    /// By module path, and by name within it: the absolute path of what a `use` brings in.
    names: BTreeMap<Path, BTreeMap<String, Path>>,
}

/// A path in a `use`, or elsewhere, as it stands in the file of the module `from`.
struct Use<'a> {
    named: Named<'a>,
    /// The name it is known by here, if it stands in a `use`.
    alias: Option<&'a str>,
    re_export: bool,
}

/// Each file of the libraries that is not of tests, with the files that it imports.
pub(super) fn imports(sources: &[Source]) -> Imports<'_> {
    let mut all = Imports::new();
    for folder in LIBRARIES {
        let whole = Crate::new(sources, folder);
        for (module, source) in &whole.files {
            all.insert(&source.path, whole.imported(module));
        }
    }
    all
}

impl<'a> Crate<'a> {
    pub(super) fn new(sources: &'a [Source], folder: &str) -> Self {
        let mut files = BTreeMap::new();
        for source in sources.iter().filter(|source| source.is_in(folder) && !source.is_tests()) {
            let inside = source.path.trim_start_matches(folder).trim_start_matches('/');
            files.insert(modules(inside).into_iter().map(String::from).collect(), source);
        }
        let mut whole = Self { files, names: BTreeMap::new() };
        // A `use` may start from a name that another one brings in: the second round knows it.
        for _ in 0..2 {
            let named = whole.files.keys().map(|module| (module.clone(), whole.named_in(module)));
            whole.names = named.collect();
        }
        whole
    }

    /// What the `use` items at the top of a file bring in.
    fn named_in(&self, module: &Path) -> BTreeMap<String, Path> {
        let mut names = BTreeMap::new();
        for used in uses(self.files[module]).iter().filter(|used| used.named.last.depth == 0) {
            let Some(alias) = used.alias else { continue };
            if let Some(path) = self.absolute(module, &used.named.segments, used.named.last.depth) {
                names.insert(alias.into(), path);
            }
        }
        names
    }

    fn imported(&self, module: &Path) -> BTreeSet<&'a str> {
        let source = self.files[module];
        let uses = uses(source);
        let re_exported: BTreeSet<&str> =
            uses.iter().filter(|used| used.re_export).filter_map(|used| used.alias).collect();
        let mut files = BTreeSet::new();
        for used in uses.iter().filter(|used| !used.re_export) {
            let single = used.alias.is_none() && used.named.segments.len() == 1;
            // A word that is no path means another file only if a re-export brought it in.
            if single && !re_exported.contains(used.named.segments[0]) {
                continue;
            }
            let path = self.absolute(module, &used.named.segments, used.named.last.depth);
            let item = path.and_then(|path| self.item_at(&path, LONGEST_CHAIN));
            files.extend(item.map(|(file, _)| file));
        }
        files.remove(&*source.path);
        files
    }

    /// The path from the crate's root of one that stands in `depth` modules of a file. None for a path
    /// to another crate or to an item of the file.
    fn absolute(&self, module: &Path, segments: &[&str], depth: usize) -> Option<Path> {
        let segments: Vec<&str> =
            segments.iter().copied().filter(|segment| *segment != "self").collect();
        let up = segments.iter().take_while(|segment| **segment == "super").count();
        let (mut path, rest) = match segments.first()? {
            &"crate" => (Path::new(), &segments[1..]),
            &"super" => {
                let levels = up.saturating_sub(depth).min(module.len());
                (module[..module.len() - levels].to_vec(), &segments[up..])
            }
            first => {
                let mut child = module.clone();
                child.push((*first).into());
                if self.files.contains_key(&child) {
                    (child, &segments[1..])
                } else {
                    (self.names.get(module)?.get(*first)?.clone(), &segments[1..])
                }
            }
        };
        path.extend(rest.iter().map(|segment| String::from(*segment)));
        Some(path)
    }

    /// The file that defines the type of this path, and the type's name there.
    pub(super) fn type_at(
        &self,
        module: &Path,
        segments: &[&str],
        depth: usize,
    ) -> Option<(&'a str, String)> {
        let Some(path) = self.absolute(module, segments, depth) else {
            // A name that nothing brings in is of the file itself, if it is of the crate at all.
            let [name] = segments else { return None };
            return Some((&self.files[module].path, String::from(*name)));
        };
        self.item_at(&path, LONGEST_CHAIN)
    }

    /// The file that defines the item at `path`, and the item's name there. None for a module: what is
    /// taken from it has a path.
    fn item_at(&self, path: &[String], chain: usize) -> Option<(&'a str, String)> {
        let inner = (0..=path.len()).rev().find(|&end| self.files.contains_key(&path[..end]))?;
        let (module, rest) = path.split_at(inner);
        let first = rest.first()?;
        match self.names.get(module).and_then(|names| names.get(first)) {
            Some(target) if chain > 0 => {
                let through: Path = target.iter().chain(&rest[1..]).cloned().collect();
                self.item_at(&through, chain - 1)
            }
            _ => Some((&self.files[module].path, rest.last()?.clone())),
        }
    }
}

/// Every path of a file outside its modules of tests, once.
fn uses(source: &Source) -> Vec<Use<'_>> {
    let items = use_items(source);
    let mut found = Vec::new();
    for named in source.names().into_iter().filter(|named| !named.last.in_tests) {
        let item = items.iter().find(|(range, _)| range.contains(&named.start));
        let (alias, re_export) = match item {
            // `names` yields the members of a group a second time, as paths of their own.
            Some((range, _)) if range.start != named.start => continue,
            Some((_, re_export)) => (Some(alias(source, &named)), *re_export),
            None => (None, false),
        };
        found.push(Use { named, alias, re_export });
    }
    found
}

/// The ranges of tokens between `use` and its semicolon, and whether the item is a re-export.
fn use_items(source: &Source) -> Vec<(std::ops::Range<usize>, bool)> {
    let tokens = &source.tokens;
    let mut items = Vec::new();
    for at in (0..tokens.len()).filter(|&at| tokens[at].is("use")) {
        let length = tokens[at..].iter().position(|token| token.is_punct(';'));
        let first = (at + 1..tokens.len()).find(|&at| matches!(tokens[at].kind, Kind::Ident(_)));
        let (Some(length), Some(first)) = (length, first) else { continue };
        let before = at.checked_sub(1).map(|before| &tokens[before]);
        let re_export =
            before.is_some_and(|token| token.is("pub") || token.kind == Kind::Close(')'));
        items.push((first..at + length, re_export));
    }
    items
}

/// The name by which a `use` makes its last segment known.
fn alias<'a>(source: &'a Source, named: &Named<'a>) -> &'a str {
    let word = |at: usize| match &source.tokens.get(at)?.kind {
        Kind::Ident(word) => Some(word.as_str()),
        _ => None,
    };
    let renamed = (word(named.end + 1) == Some("as")).then(|| word(named.end + 2)).flatten();
    let last = named.segments.iter().rev().find(|segment| **segment != "self");
    renamed.or(last.copied()).unwrap_or_default()
}
