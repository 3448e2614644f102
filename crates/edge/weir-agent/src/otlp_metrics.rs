//! The metrics as OpenTelemetry metrics, in the JSON encoding of OTLP.
//!
//! The source is the text of `/metrics`, so that both have the same metrics.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`: values count from the start of the agent.
const CUMULATIVE: u8 = 2;

/// The agent that sends the metrics.
#[derive(Clone, Debug)]
pub(crate) struct MetricsSender {
    pub(crate) node: String,
    pub(crate) version: &'static str,
    /// The start of the agent, in nanoseconds since 1970.
    pub(crate) start: u128,
}

/// The metrics of one name.
#[derive(Default)]
struct MetricFamily<'a> {
    kind: &'a str,
    help: &'a str,
    samples: Vec<Sample<'a>>,
}

/// A line with a value.
struct Sample<'a> {
    /// The part of the name after that of the family, such as `_bucket`.
    suffix: &'a str,
    labels: Vec<(&'a str, String)>,
    value: &'a str,
}

impl MetricsSender {
    /// The body of a request to `/v1/metrics`, for a text in the format of OpenMetrics and a time in
    /// nanoseconds since 1970.
    pub(crate) fn body(&self, text: &str, now: u128) -> Value {
        let resource = [
            ("service.name", "weir-agent"),
            ("service.version", self.version),
            ("k8s.node.name", &*self.node),
        ];
        let resource = resource.map(|(key, value)| attribute(key, value));
        let metrics: Vec<Value> = families(text)
            .into_iter()
            .filter_map(|(name, family)| self.metric(name, &family, now))
            .collect();
        json!({"resourceMetrics": [{
            "resource": {"attributes": resource},
            "scopeMetrics": [{"scope": {"name": "weir.agent"}, "metrics": metrics}],
        }]})
    }

    fn metric(&self, name: &str, family: &MetricFamily<'_>, now: u128) -> Option<Value> {
        let point = |labels: &[(&str, String)]| {
            let attributes: Vec<Value> =
                labels.iter().map(|(key, value)| attribute(key, value)).collect();
            let mut point = Map::new();
            point.insert("attributes".into(), attributes.into());
            point.insert("startTimeUnixNano".into(), self.start.to_string().into());
            point.insert("timeUnixNano".into(), now.to_string().into());
            point
        };
        let numbers = |suffix: &str| -> Vec<Value> {
            let samples = family.samples.iter().filter(|sample| sample.suffix == suffix);
            let points = samples.map(|sample| {
                let mut point = point(&sample.labels);
                match sample.value.parse::<i64>() {
                    // The JSON encoding of OTLP writes 64-bit integers as strings.
                    Ok(value) => point.insert("asInt".into(), value.to_string().into()),
                    Err(_) => point.insert("asDouble".into(), double(sample.value)),
                };
                Value::Object(point)
            });
            points.collect()
        };
        let (kind, data) = match family.kind {
            "counter" => {
                let points = numbers("_total");
                let sum = json!({"aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points});
                ("sum", sum)
            }
            "gauge" => ("gauge", json!({"dataPoints": numbers("")})),
            "histogram" => {
                let points = histogram_points(family, point);
                ("histogram", json!({"aggregationTemporality": CUMULATIVE, "dataPoints": points}))
            }
            _ => return None,
        };
        let is_empty = data["dataPoints"].as_array().is_none_or(Vec::is_empty);
        (!is_empty).then(|| json!({"name": name, "description": family.help, kind: data}))
    }
}

/// One point for each set of labels, apart from the bound of the bucket.
fn histogram_points(
    family: &MetricFamily<'_>,
    point: impl Fn(&[(&str, String)]) -> Map<String, Value>,
) -> Vec<Value> {
    /// Bounds with the number of values up to them, the sum and the count.
    type Parts<'a> = (Vec<(&'a str, u64)>, &'a str, &'a str);
    let mut all: BTreeMap<Vec<(&str, String)>, Parts<'_>> = BTreeMap::new();
    for Sample { suffix, labels, value } in &family.samples {
        let other = labels.iter().filter(|(key, _)| *key != "le").cloned().collect();
        let (buckets, sum, count) = all.entry(other).or_default();
        match *suffix {
            "_bucket" => {
                let bound = labels.iter().find(|(key, _)| *key == "le");
                let bound = bound.map_or("", |(_, bound)| bound.as_str());
                buckets.push((bound, value.parse().unwrap_or(0)));
            }
            "_sum" => *sum = value,
            "_count" => *count = value,
            _ => (),
        }
    }
    let points = all.into_iter().map(|(labels, (buckets, sum, count))| {
        let mut point = point(&labels);
        let mut before = 0;
        let counts = buckets.iter().map(|(_, up_to)| {
            let own = up_to.saturating_sub(before);
            before = *up_to;
            Value::from(own.to_string())
        });
        point.insert("bucketCounts".into(), counts.collect());
        let bounds = buckets.iter().filter(|(bound, _)| *bound != "+Inf");
        point.insert("explicitBounds".into(), bounds.map(|(bound, _)| double(bound)).collect());
        point.insert("sum".into(), double(sum));
        point.insert("count".into(), count.into());
        Value::Object(point)
    });
    points.collect()
}

/// The families of a text, by name.
fn families(text: &str) -> BTreeMap<&str, MetricFamily<'_>> {
    let mut families: BTreeMap<&str, MetricFamily<'_>> = BTreeMap::new();
    let mut current = "";
    for line in text.lines() {
        let described = line.strip_prefix("# TYPE ").map(|rest| (true, rest));
        let described =
            described.or_else(|| line.strip_prefix("# HELP ").map(|rest| (false, rest)));
        if let Some((is_type, rest)) = described {
            let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            current = name;
            let family = families.entry(name).or_default();
            *(if is_type { &mut family.kind } else { &mut family.help }) = rest;
        } else if let Some(sample) = sample(line, current) {
            families.entry(current).or_default().samples.push(sample);
        }
    }
    families
}

/// A line of a family; `None` for a comment.
fn sample<'a>(line: &'a str, family: &str) -> Option<Sample<'a>> {
    let rest = line.strip_prefix(family)?;
    let end = rest.find(['{', ' '])?;
    let (suffix, mut rest) = rest.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (key, value) = rest.trim_start_matches(',').split_once("=\"")?;
            let (value, after) = unquoted(value)?;
            labels.push((key, value));
            rest = after;
        }
        rest = &rest[1..];
    }
    Some(Sample { suffix, labels, value: rest.split_whitespace().next()? })
}

/// The value of a label, up to its closing quote, and the text after that.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

fn attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// A number with a fraction. JSON has no infinity.
fn double(text: &str) -> Value {
    text.parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use prometheus_client::{
        encoding::text::encode,
        metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
        registry::Registry,
    };

    use super::*;

    #[test]
    fn every_kind_of_metric_becomes_its_counterpart() {
        let mut registry = Registry::default();
        let drops: Family<[(&'static str, String); 2], Counter> = Family::default();
        registry.register("weir_drops", "Packets dropped", drops.clone());
        let hostile = "a\"b\\c\n} 7, x=\"y".to_owned();
        drops
            .get_or_create(&[("direction", "ingress".into()), ("policy", hostile.clone())])
            .inc_by(3);
        let gauge: Gauge = Gauge::default();
        registry.register("weir_policies", "Policies", gauge.clone());
        gauge.set(-2);
        let histogram = Histogram::new([0.5, 2.0]);
        registry.register("weir_apply_seconds", "Time", histogram.clone());
        [0.25, 0.5, 1.0, 9.0].iter().for_each(|value| histogram.observe(*value));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();

        let sender = MetricsSender { node: "n1".into(), version: "1.2.3", start: 5 };
        let body = sender.body(&text, 7);
        let resource = &body["resourceMetrics"][0]["resource"]["attributes"];
        assert_eq!(resource[2], attribute("k8s.node.name", "n1"));
        let metrics = &body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        let times = |mut point: Value| {
            let own = point.as_object_mut().unwrap();
            assert_eq!(own.remove("startTimeUnixNano"), Some("5".into()));
            assert_eq!(own.remove("timeUnixNano"), Some("7".into()));
            point
        };
        let find = |name: &str| {
            let all = metrics.as_array().unwrap();
            all.iter().find(|metric| metric["name"] == name).unwrap()
        };
        let sum = &find("weir_drops")["sum"];
        assert_eq!(
            (&sum["isMonotonic"], &sum["aggregationTemporality"]),
            (&json!(true), &json!(2))
        );
        let labels = [attribute("direction", "ingress"), attribute("policy", &hostile)];
        assert_eq!(
            times(sum["dataPoints"][0].clone()),
            json!({"attributes": labels, "asInt": "3"})
        );
        let gauge = &find("weir_policies")["gauge"]["dataPoints"][0];
        assert_eq!(times(gauge.clone()), json!({"attributes": [], "asInt": "-2"}));
        let histogram = &find("weir_apply_seconds")["histogram"]["dataPoints"][0];
        assert_eq!(
            times(histogram.clone()),
            json!({
                "attributes": [], "bucketCounts": ["2", "1", "1"], "explicitBounds": [0.5, 2.0],
                "sum": 10.75, "count": "4",
            })
        );
        assert_eq!(metrics.as_array().unwrap().len(), 3, "{metrics}");
    }

    #[test]
    fn any_text_is_harmless() {
        let sender = MetricsSender { node: "n1".into(), version: "1", start: 0 };
        for text in ["", "# TYPE", "# TYPE a counter\na{", "# TYPE a counter\na{b=\"", "a 1", "\\"]
        {
            let body = sender.body(text, 0);
            let metrics = &body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
            assert_eq!(*metrics, json!([]), "{text}");
        }
    }
}
