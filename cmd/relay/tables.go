package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// TableConfig says how the rows of one table become records. docs/tables.md has examples.
type TableConfig struct {
	// Name is the table, schema.name; of a partitioned table the root.
	Name string
	// Preset names the columns of a well-known table: native (the default when Columns is empty) or debezium.
	Preset string
	// Columns says which column fills which field of an event; "" takes a field out of the preset.
	Columns map[string]string
	// IDPrefix is put before the value of the ID column. A column that is not a uuid needs one; "" says that it does
	// not, because its values are unique everywhere.
	IDPrefix *string
	// Topic is the template of the topic: {name} is the value of a field or column. Default route.topic, and
	// outbox.event.{aggregatetype} for the preset debezium.
	Topic string
	// Topics are the names that the topic column may hold. Default route.topics.
	Topics []string
	// RouteBy, TopicRegex and TopicReplacement make the topic as Debezium's route.by.field, route.topic.regex and
	// route.topic.replacement do, and have their defaults.
	RouteBy, TopicRegex, TopicReplacement string
	// Key is the column that is the record's key. Default: partition_key, else aggregate_id.
	Key string
	// Partition is the column that is the number of the record's partition. Default none.
	Partition string
	// EventTime is the column that is the record's timestamp. Default none: the time when it is sent.
	EventTime string
	// Additional places further columns: column:header|envelope|partition[:alias], separated by commas.
	Additional string
	// AdditionalMissing is error (default), or ignore to accept that columns in Additional are not there yet.
	AdditionalMissing string
	// TombstoneOnEmpty makes an empty payload a tombstone. Default false.
	TombstoneOnEmpty bool
	// CloudEvents is false (default) or binary.
	CloudEvents string
	// CloudEventsSource is the attribute source, CloudEventsType the field or column that is the attribute type.
	// Default event_type, and type for the preset debezium.
	CloudEventsSource, CloudEventsType string
	// ContentType is the content type of values whose column does not say it.
	ContentType string
	// Compression is that of batches of these records. Default route.compression, else kafka.compression.
	Compression string
	// MaxRecordBytes is the largest record that is tried. Default max_record_bytes.
	MaxRecordBytes ByteSize
	// Poison is halt, park or hold-key. Default route.poison.
	Poison string
	// DeadLetterTopic gets a copy of each dead letter. Default route.dead_letter_topic.
	DeadLetterTopic string
	// Retention is how old rows become, a duration, or off. Default retention.age.
	Retention string
}

// MessageConfig says how logical messages of one prefix become records.
type MessageConfig struct {
	// Prefix is what pg_logical_emit_message was given, the whole of it. The prefix outbox is that of outbox.emit.
	Prefix string
	// Topic is the topic; for outbox a template as of a table. Default for outbox: route.topic.
	Topic string
	// Topics are the names that an emitted event may ask for. Default route.topics.
	Topics []string
	// CloudEvents, CloudEventsSource and ContentType are those of a table, for outbox only.
	CloudEvents, CloudEventsSource, ContentType string
	// Poison is halt, park or hold-key. Default route.poison.
	Poison string
	// DeadLetterTopic gets a copy of each dead letter. Default route.dead_letter_topic.
	DeadLetterTopic string
	// Compression and MaxRecordBytes are those of a table.
	Compression    string
	MaxRecordBytes ByteSize
}

// entryField is one key of an entry of a list in the file, and where its value lives.
type entryField struct {
	name  string
	value any // *string, **string, *bool, *[]string, *map[string]string or *ByteSize
}

func (t *TableConfig) fields() []entryField {
	return []entryField{
		{"name", &t.Name}, {"preset", &t.Preset}, {"columns", &t.Columns}, {"id_prefix", &t.IDPrefix},
		{"topic", &t.Topic}, {"topics", &t.Topics}, {"route_by", &t.RouteBy}, {"topic_regex", &t.TopicRegex},
		{"topic_replacement", &t.TopicReplacement}, {"key", &t.Key}, {"partition", &t.Partition}, {"event_time", &t.EventTime},
		{"additional", &t.Additional}, {"additional_missing", &t.AdditionalMissing}, {"tombstone_on_empty", &t.TombstoneOnEmpty},
		{"cloudevents", &t.CloudEvents}, {"cloudevents_source", &t.CloudEventsSource}, {"cloudevents_type", &t.CloudEventsType},
		{"content_type", &t.ContentType}, {"poison", &t.Poison}, {"dead_letter_topic", &t.DeadLetterTopic}, {"retention", &t.Retention},
		{"compression", &t.Compression}, {"max_record_bytes", &t.MaxRecordBytes},
	}
}

func (m *MessageConfig) fields() []entryField {
	return []entryField{
		{"prefix", &m.Prefix}, {"topic", &m.Topic}, {"topics", &m.Topics},
		{"cloudevents", &m.CloudEvents}, {"cloudevents_source", &m.CloudEventsSource}, {"content_type", &m.ContentType},
		{"poison", &m.Poison}, {"dead_letter_topic", &m.DeadLetterTopic}, {"compression", &m.Compression}, {"max_record_bytes", &m.MaxRecordBytes},
	}
}

// entryList is the value of a key that is a list of mappings. Only the file can hold one.
type entryList interface {
	add() []entryField // appends an entry and returns its fields
	all() [][]entryField
}

type tablesValue []TableConfig

func (v *tablesValue) Set(string) error { return errOnlyInFile }
func (v *tablesValue) String() string   { return "" }
func (v *tablesValue) Type() string     { return kindEntries }
func (v *tablesValue) add() []entryField {
	*v = append(*v, TableConfig{})
	return (*v)[len(*v)-1].fields()
}

func (v *tablesValue) all() (out [][]entryField) {
	for i := range *v {
		out = append(out, (*v)[i].fields())
	}
	return out
}

type messagesValue []MessageConfig

func (v *messagesValue) Set(string) error { return errOnlyInFile }
func (v *messagesValue) String() string   { return "" }
func (v *messagesValue) Type() string     { return kindEntries }
func (v *messagesValue) add() []entryField {
	*v = append(*v, MessageConfig{})
	return (*v)[len(*v)-1].fields()
}

func (v *messagesValue) all() (out [][]entryField) {
	for i := range *v {
		out = append(out, (*v)[i].fields())
	}
	return out
}

const kindEntries = "list of mappings"

var errOnlyInFile = &usageError{problem: "a list of mappings can only stand in the file", hint: "name a file with --config or RELAY_CONFIG"}

// setEntries reads the list that YAML made of a key.
func (l *loader) setEntries(name, source string, list entryList, v any) {
	entries, ok := v.([]any)
	if !ok {
		l.mistake(name, source, "is not a list of mappings", "begin each entry with a dash")
		return
	}
	if len(entries) > 0 {
		l.sources[name] = source
	}
	for i, e := range entries {
		at := fmt.Sprintf("%s[%d]", name, i)
		fields := list.add()
		m, ok := e.(map[string]any)
		if !ok {
			l.mistake(at, source, "is not a mapping", "write the entry's keys below one another, behind the dash")
			continue
		}
		var names []string
		for _, f := range fields {
			names = append(names, f.name)
		}
		for _, key := range slices.Sorted(maps.Keys(m)) {
			j := slices.Index(names, key)
			if j < 0 {
				l.mistake(at+"."+key, source, "unknown key", suggest(key, names, "an entry has the keys "+strings.Join(names, ", ")))
				continue
			}
			if hint := setEntry(fields[j].value, m[key]); hint != "" {
				l.mistake(at+"."+key, source, "YAML reads the value as something else", hint)
			}
		}
	}
}

// setEntry stores a value that YAML has read; hint says what to write where that is not possible.
func setEntry(to, v any) (hint string) {
	const text, list, columns = "write text, in quotes where YAML sees something else", "write a list of names", "write a mapping of fields to columns"
	switch to := to.(type) {
	case *bool:
		b, ok := v.(bool)
		if !ok {
			return "write true or false"
		}
		*to = b
	case *string:
		s, ok := v.(string)
		if b, isBool := v.(bool); isBool { // cloudevents: false
			s, ok = fmt.Sprint(b), true
		}
		if !ok {
			return text
		}
		*to = s
	case *ByteSize:
		if err := to.Set(fmt.Sprint(v)); err != nil {
			return err.Error()
		}
	case **string:
		s, ok := v.(string)
		if !ok {
			return text
		}
		*to = &s
	case *[]string:
		elements, ok := v.([]any)
		if !ok {
			return list
		}
		for _, e := range elements {
			s, ok := e.(string)
			if !ok {
				return list
			}
			*to = append(*to, s)
		}
	case *map[string]string:
		m, ok := v.(map[string]any)
		if !ok {
			return columns
		}
		*to = map[string]string{}
		for name, e := range m {
			s, ok := e.(string)
			if !ok {
				return columns
			}
			(*to)[name] = s
		}
	}
	return ""
}

// yamlEntries writes a list so that loading the text gives it back: JSON is YAML.
func yamlEntries(list entryList) string {
	var entries []string
	for _, fields := range list.all() {
		var set []string
		for _, f := range fields {
			if text := yamlEntry(f.value); text != "" {
				set = append(set, f.name+": "+text)
			}
		}
		entries = append(entries, "{"+strings.Join(set, ", ")+"}")
	}
	return "[" + strings.Join(entries, ", ") + "]"
}

// yamlEntry writes one value; "" for one that was not set.
func yamlEntry(v any) string {
	switch v := v.(type) {
	case *bool:
		if *v {
			return "true"
		}
	case *string:
		if *v != "" {
			return jsonText(*v)
		}
	case *ByteSize:
		if *v != 0 {
			return jsonText(v.String())
		}
	case **string:
		if *v != nil {
			return jsonText(**v)
		}
	case *[]string:
		if len(*v) > 0 {
			return jsonText(*v)
		}
	case *map[string]string:
		if len(*v) > 0 {
			return jsonText(*v)
		}
	}
	return ""
}

func jsonText(v any) string {
	text, err := json.Marshal(v) // of strings only
	if err != nil {
		return `""`
	}
	return string(text)
}
