//! The root of the crate that people name has few names. The rest is in modules by topic.

use super::Finding;
use anyhow::{Context as _, Result};
use std::path::Path;
use syn::{Attribute, Item, UseTree, Visibility};

const FILE: &str = "src/lib.rs";

/// The most names at the root: items, modules and re-exported crates.
const MOST: usize = 50;

pub(super) fn few_names(root: &Path) -> Result<Option<Finding>> {
    let text = std::fs::read_to_string(root.join(FILE)).context(FILE)?;
    let names = names(&text)?;
    let text = format!("{} names at the root, {MOST} at most: {}", names.len(), names.join(" "));
    Ok((names.len() > MOST).then(|| Finding { path: FILE.into(), line: 1, text }))
}

fn names(text: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for item in syn::parse_file(text)?.items {
        match item {
            Item::Use(item) if is_shown(&item.vis, &item.attrs) => add(&item.tree, &mut names),
            Item::Mod(item) if is_shown(&item.vis, &item.attrs) => {
                names.push(item.ident.to_string())
            }
            _ => {}
        }
    }
    names.sort();
    Ok(names)
}

fn is_shown(visibility: &Visibility, attributes: &[Attribute]) -> bool {
    let is_hidden = |attribute: &Attribute| {
        attribute.path().is_ident("doc")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "hidden")
    };
    matches!(visibility, Visibility::Public(_)) && !attributes.iter().any(is_hidden)
}

fn add(tree: &UseTree, names: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => add(&path.tree, names),
        UseTree::Name(name) => names.push(name.ident.to_string()),
        UseTree::Rename(rename) => names.push(rename.rename.to_string()),
        UseTree::Glob(_) => names.push("*".into()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| add(tree, names)),
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn what_users_see_is_counted_once() {
        let text = "mod a;\npub mod b { pub use c::D; }\npub use e::{F, g::{H as I, J}};\n\
            #[doc(hidden)]\npub use k::L;\npub(crate) use m::N;\nuse o::P;\n#[doc(inline)]\npub use q;\n";
        assert_eq!(names(text).unwrap(), ["F", "I", "J", "b", "q"]);
    }
}
