//! Pictures and traces as a person sees them: what is written fits, and says what it is of.

use roxmltree::{Document, Node};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The right end of the panels.
const RIGHT: f64 = 1180.0;

fn out(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The picture and the trace of a log, and the exit status.
fn drawn(log: &Path, arguments: &[&str]) -> (String, Value, Option<i32>) {
    let (svg, json) = (log.with_extension("svg"), log.with_extension("json"));
    let output = Command::new(env!("CARGO_BIN_EXE_aquifer-replay"))
        .arg(log)
        .args(arguments)
        .args([Path::new("--picture"), &svg, Path::new("--trace"), &json])
        .output()
        .unwrap();
    let trace = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    (std::fs::read_to_string(svg).unwrap(), trace, output.status.code())
}

/// A log of allocations of so many bytes, each on its stream.
fn log_of(name: &str, allocations: impl IntoIterator<Item = (String, u64)>) -> PathBuf {
    let mut text = String::from("Thread,Time,Action,Pointer,Size,Stream\n");
    for (at, (stream, bytes)) in allocations.into_iter().enumerate() {
        text += &format!("1,00:00:00.0,allocate,{:#x},{bytes},{stream}\n", (at + 1) << 32);
    }
    let path = out(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn group<'a>(document: &'a Document<'a>, class: &str) -> Node<'a, 'a> {
    document.descendants().find(|node| node.attribute("class") == Some(class)).unwrap()
}

/// Places and words of the texts in a node: x, y, words.
fn texts(node: Node<'_, '_>) -> Vec<(f64, f64, String)> {
    let number = |node: Node<'_, '_>, name| node.attribute(name).unwrap().parse::<f64>().unwrap();
    node.descendants()
        .filter(|node| node.has_tag_name("text"))
        .map(|node| {
            let words =
                node.children().filter_map(|child| child.text().filter(|_| child.is_text()));
            let words: String = words.collect();
            (number(node, "x"), number(node, "y"), words.trim().to_owned())
        })
        .collect()
}

fn pixels(words: &str) -> f64 {
    words.chars().map(|c| if c.is_ascii() { 7.2 } else { 13.0 }).sum()
}

#[test]
fn the_legend_fits() {
    let wide = "ストリームの名前がとても長いのでそのままでは入らない";
    for (file, name) in [
        ("numbers.csv", Box::new(|at: u64| (at + 16).to_string()) as Box<dyn Fn(u64) -> String>),
        ("handles.csv", Box::new(|at| format!("{:#x}", 0x557e_194c_b810_u64 + at * 16))),
        ("long_names.csv", Box::new(|at| format!("stream-of-{}-{at}", "x".repeat(46)))),
        ("wide_names.csv", Box::new(move |at| format!("{wide}{at}"))),
    ] {
        // The last eight have the most.
        let log = log_of(file, (0..30).map(|at| (name(at), 1000 + 1000 * at)));
        let (picture, _, status) = drawn(&log, &[]);
        assert_eq!(status, Some(0), "{file}");
        let document = Document::parse(&picture).unwrap();
        let legend = group(&document, "legend");
        let entries = texts(legend);
        assert_eq!(entries.len(), 10, "{entries:?}");
        assert!(entries.iter().any(|entry| entry.2 == "22 other streams"), "{entries:?}");
        assert!(entries.iter().any(|entry| entry.2 == "reserved"), "{entries:?}");
        for (x, y, words) in &entries {
            assert!(x + pixels(words) <= RIGHT, "{file}: {words}");
            // Above the upper panel.
            assert!(*y < 112.0 - 4.0, "{file}: {words}");
        }
        for two in entries.windows(2) {
            let [(x, y, words), (next, below, _)] = two else { unreachable!() };
            // 17 pixels are for the mark of the next.
            assert!(y != below || x + pixels(words) <= next - 17.0, "{file}: {words}");
        }
        let mut words: Vec<_> = entries.iter().map(|entry| &entry.2).collect();
        words.dedup();
        assert_eq!(words.len(), 10, "{file}: {words:?}");
        let mut colours: Vec<_> = legend
            .descendants()
            .filter(|n| n.has_tag_name("rect"))
            .map(|n| n.attribute("fill"))
            .collect();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), 10, "{file}: {colours:?}");
        // The colours are those of the blocks.
        let blocks: Vec<_> =
            group(&document, "blocks").children().filter(|n| n.has_tag_name("rect")).collect();
        assert!(blocks[..22].iter().all(|n| n.attribute("fill") == Some("#666666")), "{file}");
        assert!(blocks[22..].iter().all(|n| n.attribute("fill") != Some("#666666")), "{file}");
    }
}

#[test]
fn ticks_are_round() {
    let log = log_of("ticks.csv", (0..37).map(|at| (String::from("16"), 1_700_000 + at)));
    let (picture, _, _) = drawn(&log, &["--resource", "cuda"]);
    let document = Document::parse(&picture).unwrap();
    let axes = document.descendants().filter(|node| node.attribute("class") == Some("axis"));
    let words: Vec<Vec<String>> =
        axes.map(|axis| texts(axis).into_iter().map(|(_, _, words)| words).collect()).collect();
    let bytes = ["0", "16 MiB", "32 MiB", "48 MiB"];
    assert_eq!(words[0][1..], bytes);
    assert_eq!(words[1][1..], bytes);
    assert_eq!(words[2], ["0", "10", "20", "30", "operation of the log (number)"]);
}

#[test]
fn refused_allocations_are_marked() {
    let log = out("too_large.rmm.csv");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs/too_large.rmm.csv");
    std::fs::copy(source, &log).unwrap();
    let (picture, trace, status) = drawn(&log, &["--capacity", "1GiB"]);
    assert_eq!(status, Some(3));
    let document = Document::parse(&picture).unwrap();
    let marks: Vec<_> = group(&document, "refused").children().filter(Node::is_element).collect();
    let [mark] = &marks[..] else { panic!("{picture}") };
    let line = mark.descendants().find(|node| node.has_tag_name("line")).unwrap();
    // The second of four operations.
    assert_eq!(line.attribute("x1"), Some("370.0"));
    let title = mark.descendants().find(|node| node.has_tag_name("title")).unwrap();
    assert_eq!(title.text().unwrap().trim(), "line 3: 2000000000 B refused");
    let legend = texts(group(&document, "legend"));
    assert!(legend.iter().any(|entry| entry.2 == "refused (1)"), "{legend:?}");
    let events = trace["traceEvents"].as_array().unwrap();
    let refused: Vec<_> = events.iter().filter(|event| event["ph"] == "i").collect();
    let [refused] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!(refused["name"], "refused 2000000000 B");
    assert_eq!(
        (&refused["args"]["line"], &refused["args"]["bytes"]),
        (&3.into(), &2_000_000_000_u64.into())
    );
    assert!(refused["args"]["error"].as_str().unwrap().contains("2000000000 bytes"));
    // None is marked where none was refused.
    let (picture, trace, status) = drawn(&log, &[]);
    assert_eq!(status, Some(0));
    assert!(!picture.contains("refused (") && !trace.to_string().contains("\"ph\":\"i\""));
}

#[test]
fn a_picture_of_many_refusals_stays_small() {
    let log = log_of("many_refused.csv", (0..40_000).map(|_| (String::from("16"), 1 << 30)));
    let (picture, trace, status) = drawn(&log, &["--capacity", "1MiB", "--resource", "cuda"]);
    assert_eq!(status, Some(3));
    assert!(picture.len() < 3_000_000, "{} bytes", picture.len());
    let document = Document::parse(&picture).unwrap();
    let marks = group(&document, "refused").children().filter(Node::is_element).count();
    assert_eq!(marks, 540);
    assert!(picture.contains("and 72 more") || picture.contains("and 71 more"));
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(events.iter().filter(|event| event["ph"] == "i").count(), 40_000);
}

#[test]
fn the_title_is_the_logs_name() {
    for name in ["a<b>&c.csv", &format!("{}.csv", "long".repeat(50))] {
        let (picture, trace, _) = drawn(&log_of(name, [(String::from("16"), 1000)]), &[]);
        let document = Document::parse(&picture).unwrap();
        let title = format!("{name}: pool on simulated device");
        let first = document.descendants().find(|node| node.has_tag_name("title")).unwrap();
        assert_eq!(first.text().unwrap().trim(), title);
        let shown = texts(document.root_element()).swap_remove(0);
        assert!(shown.0 + pixels(&shown.2) * 16.0 / 12.0 <= RIGHT, "{shown:?}");
        if name.len() < 50 {
            assert_eq!(shown.2, title);
        }
        assert_eq!(trace["traceEvents"][0]["args"]["name"], title);
        assert_eq!(trace["otherData"]["log"], name);
    }
}

/// Blocks of a byte among gigabytes, and operations of a moment among thousands of refusals.
#[test]
fn what_is_small_is_seen() {
    let size = |at| if at % 2 == 0 { 1 } else { 3 << 30 };
    let small = (0..200).map(|at| (String::from("16"), size(at)));
    let long =
        (0..40_000).map(|at| (String::from("16"), if at % 4000 == 3999 { 1 } else { 1 << 31 }));
    let short = log_of("short.csv", long);
    // Freed at once, each.
    let text = std::fs::read_to_string(&short).unwrap();
    let freed = text.lines().flat_map(|line| {
        let free = line.contains(",1,16").then(|| line.replace("allocate", "free"));
        [Some(line.to_owned()), free].into_iter().flatten().collect::<Vec<_>>()
    });
    let freed: Vec<String> = freed.collect();
    std::fs::write(&short, freed.join("\n") + "\n").unwrap();
    for (log, arguments, count) in [
        (log_of("small.csv", small), &[][..], 200),
        (short, &["--resource", "cuda", "--capacity", "1MiB"], 10),
    ] {
        let (picture, _, _) = drawn(&log, arguments);
        let document = Document::parse(&picture).unwrap();
        let panel = (100.0, 112.0, RIGHT, 552.0);
        for class in ["blocks", "reserved"] {
            let rectangles: Vec<_> =
                group(&document, class).children().filter(|n| n.has_tag_name("rect")).collect();
            assert!(class == "reserved" || rectangles.len() == count, "{}", rectangles.len());
            for node in rectangles {
                let [x, y, width, height] = ["x", "y", "width", "height"]
                    .map(|name| node.attribute(name).unwrap().parse::<f64>().unwrap());
                assert!(width >= 0.5 && height >= 0.5, "{node:?}");
                assert!(x >= panel.0 && y >= panel.1, "{node:?}");
                assert!(x + width <= panel.2 + 0.02 && y + height <= panel.3 + 0.02, "{node:?}");
                // What a white line leaves of it.
                let edge = node.attribute("stroke-width").map_or(0.0, |edge| edge.parse().unwrap());
                assert!(height - edge >= 0.2, "{node:?}");
            }
        }
    }
}
