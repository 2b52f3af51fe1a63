//! Links of the pages that people read in the repository, on crates.io and on docs.rs. A relative link
//! leads somewhere in one of these places alone. README.md and
//! ARCHITECTURE.md, which rustdoc does not show, may have pictures of the repository.

use super::Finding;
use crate::Place;
use anyhow::{Context as _, Result, bail};
use pulldown_cmark::{Event, Options, Parser, Tag};
use std::path::Path;

/// The pages, besides those of the guide.
const PAGES: [&str; 5] =
    ["ARCHITECTURE.md", "CHANGELOG.md", "README.md", "nvidia/README.md", "replay/README.md"];

/// The pages of the guide, which rustdoc includes.
const GUIDE: &str = "docs/guide";

/// Where docs.rs has our crates. What follows is the path below `target/doc`, too.
const DOCS: [&str; 2] =
    ["https://docs.rs/aquifer/latest/", "https://docs.rs/aquifer-replay/latest/"];

/// What begins a link to documentation of ours, in whatever form.
const OURS: &str = "https://docs.rs/aquifer";

/// A page and its text.
struct Page {
    path: String,
    text: String,
}

/// The links that lead nowhere when their page is read elsewhere.
pub(super) fn relative(root: &Path) -> Result<Vec<Finding>> {
    let is_picture = |page: &Page, target: &str| {
        ["README.md", "ARCHITECTURE.md"].contains(&&*page.path)
            && target.ends_with(".svg")
            && root.join(target).is_file()
    };
    let of_page = |page: &Page| {
        page.findings(|target| if is_picture(page, target) { None } else { relative_link(target) })
    };
    Ok(pages(root)?.iter().flat_map(of_page).collect())
}

/// Looks for the target of each link to our documentation in what `cargo doc` has made. Returns how many
/// there are.
pub(crate) fn in_documentation(place: &Place) -> Result<usize> {
    let made = place.target.join("doc");
    let read = |path: &str| std::fs::read_to_string(made.join(path)).ok();
    let pages = pages(&place.root)?;
    let findings: Vec<Finding> =
        pages.iter().flat_map(|page| page.findings(|target| missing(target, read))).collect();
    for finding in &findings {
        println!("{finding}");
    }
    let count = pages.iter().flat_map(Page::links).filter(|(_, to)| to.starts_with(OURS)).count();
    if !findings.is_empty() {
        bail!("{} of {count} links to the documentation lead nowhere", findings.len());
    }
    Ok(count)
}

fn pages(root: &Path) -> Result<Vec<Page>> {
    let mut paths: Vec<String> = PAGES.map(String::from).into();
    for entry in root.join(GUIDE).read_dir().with_context(|| GUIDE.to_owned())? {
        paths.push(format!("{GUIDE}/{}", entry?.file_name().to_string_lossy()));
    }
    paths.sort();
    let read = |path: String| {
        let text = std::fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        Ok(Page { path, text })
    };
    paths.into_iter().map(read).collect()
}

impl Page {
    /// The line and the target of each link and picture. What rustdoc alone takes for a link is none.
    fn links(&self) -> impl Iterator<Item = (usize, String)> {
        let parser = Parser::new_ext(&self.text, Options::ENABLE_TABLES).into_offset_iter();
        parser.filter_map(|(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                let line = self.text[..range.start].matches('\n').count() + 1;
                Some((line, dest_url.into_string()))
            }
            _ => None,
        })
    }

    fn findings(&self, fault: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
        let finding = |(line, target): (usize, String)| {
            let text = fault(&target)?;
            Some(Finding { path: self.path.clone(), line, text })
        };
        self.links().filter_map(finding).collect()
    }
}

fn relative_link(target: &str) -> Option<String> {
    let absolute = target.starts_with("https://");
    (!absolute).then(|| format!("the link to `{target}` leads somewhere in one place alone"))
}

/// Why `target` leads nowhere, if it is of our documentation: `page` has the text of a page of it by its path.
fn missing(target: &str, page: impl Fn(&str) -> Option<String>) -> Option<String> {
    if !target.starts_with(OURS) {
        return None;
    }
    let Some(path) = DOCS.iter().find_map(|docs| target.strip_prefix(docs)) else {
        return Some(format!("`{target}` names no page; those of the crates begin with {DOCS:?}"));
    };
    let (path, section) = path.split_once('#').map_or((path, None), |(path, id)| (path, Some(id)));
    let index = if path.is_empty() || path.ends_with('/') { "index.html" } else { "" };
    let Some(text) = page(&format!("{path}{index}")) else {
        return Some(format!("the documentation has no page `{path}{index}`"));
    };
    let id = section.filter(|id| !text.contains(&format!("id=\"{id}\"")))?;
    Some(format!("the page `{path}{index}` of the documentation has no section `{id}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page { path: "README.md".into(), text: text.into() }
    }

    #[test]
    fn a_relative_link_is_found_in_any_form() {
        let text = "[one](docs/A.md), ![two](a.svg)\n\n| [three][] |\n| --- |\n| [four](#here) |\n\n\
            [three]: ../x\n";
        let findings = page(text).findings(relative_link);
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [1, 1, 3, 5]);
        let good =
            "[one](https://docs.rs/loom), [`Two`], `[three](x)`\n\n```text\n[four](x)\n```\n";
        assert_eq!(page(good).findings(relative_link), []);
    }

    #[test]
    fn a_link_to_the_documentation_needs_its_page_and_section() {
        let made = |path: &str| {
            let text = r#"<h2 id="what">What</h2>"#;
            ["aquifer/index.html", "aquifer_replay/read/index.html"]
                .contains(&path)
                .then(|| text.to_owned())
        };
        for good in [
            "https://docs.rs/aquifer/latest/aquifer/",
            "https://docs.rs/aquifer/latest/aquifer/index.html#what",
            "https://docs.rs/aquifer-replay/latest/aquifer_replay/read/index.html",
            "https://docs.rs/loom",
        ] {
            assert_eq!(missing(good, made), None, "{good}");
        }
        for bad in [
            "https://docs.rs/aquifer",
            "https://docs.rs/aquifer/0.1.0/aquifer/",
            "https://docs.rs/aquifer/latest/aquifer/struct.Other.html",
            "https://docs.rs/aquifer/latest/aquifer/index.html#who",
        ] {
            assert!(missing(bad, made).is_some(), "{bad}");
        }
    }
}
