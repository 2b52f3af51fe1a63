//! Allocations as events of `tracing`.

use crate::support;
use aquifer::{CudaResource, DeviceLayout, DeviceResource, mr::TracedAdaptor};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}"));
    }
}

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

impl<S: Subscriber> Layer<S> for Heard {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != "aquifer::memory" {
            return;
        }
        assert_eq!(*event.metadata().level(), Level::TRACE);
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }
}

#[test]
fn each_call_is_an_event_for_those_who_want_it() {
    let device = support::device();
    let stream = device.new_stream().unwrap();
    let traced = TracedAdaptor::new(CudaResource::new(&device));
    let run = || {
        let block = traced.allocate(&stream, DeviceLayout::new(1000).unwrap()).unwrap();
        let address = block.address();
        // SAFETY: allocated above on this stream; nothing uses it.
        unsafe { traced.deallocate(&stream, block) };
        traced.allocate(&stream, DeviceLayout::new(1 << 46).unwrap()).unwrap_err();
        address
    };
    let deaf = Heard::default();
    let subscriber = tracing_subscriber::registry().with(LevelFilter::DEBUG).with(deaf.clone());
    tracing::subscriber::with_default(subscriber, run);
    assert!(deaf.0.lock().unwrap().is_empty());

    let heard = Heard::default();
    let subscriber = tracing_subscriber::registry().with(heard.clone());
    let address = tracing::subscriber::with_default(subscriber, run);
    let heard = heard.0.lock().unwrap();
    let messages: Vec<&str> = heard.iter().map(|event| event["message"].as_str()).collect();
    assert_eq!(messages, ["allocate", "free", "allocate failure"]);
    for event in heard.iter() {
        assert_eq!(event["stream"], stream.id().to_string());
        assert_eq!(event["device"], "0");
        assert!(event["elapsed_ns"].parse::<u64>().is_ok());
    }
    for event in &heard[..2] {
        assert_eq!(event["address"], format!("{address:#x}"));
        assert_eq!(event["bytes"], "1000");
    }
    assert_eq!(heard[2]["bytes"], (1_u64 << 46).to_string());
    assert!(!heard[2]["error"].is_empty());
}

#[test]
fn clones_are_one_adaptor_and_another_is_another() {
    let device = support::device();
    let make = || TracedAdaptor::new(CudaResource::new(&device));
    let (one, other) = (make(), make());
    assert_eq!(one, one.clone());
    assert_eq!(one.identity(), one.clone().identity());
    assert_ne!(one, other);
    assert_ne!(one.identity(), other.identity());
    assert_eq!(one.upstream().identity(), other.upstream().identity());
}
