package sink

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// Route says what record becomes of an event: where it goes and what it is made of. outbox.Committed.Route is an
// index into Config.Routes.
type Route struct {
	// Topic is the template of the topic for an event without an explicit one. {name} stands for the value of the
	// field aggregate_type, aggregate_id, event_type, event_key or tenant, or of one of Columns.
	Topic string
	// RouteBy, Regex and Replacement, where Regex is not empty, make the topic instead of Topic: what Regex
	// matches in the value of the column or field RouteBy is replaced. The value has to match as a whole; one that
	// does not is the topic itself, if it is among Topics.
	RouteBy, Regex, Replacement string
	// Topics lists what an event's topic column may name. Where nothing but a further column makes the topic, it
	// lists what that may name, too.
	Topics []string

	// Columns names the values of Committed.Extra, in their order. What follows names columns among them.
	Columns []string
	// Key is the column whose value is the record's key. Empty: the partition key, else the aggregate ID.
	Key string
	// EventTime is the column whose value is the record's timestamp: a timestamp, or milliseconds since 1970. NULL,
	// and what Kafka cannot hold, is replaced by the time of the commit. Empty: a record's timestamp is when it
	// was first sent.
	EventTime string
	// Placements say where the values of columns go. One that is NULL makes no header and no partition, and null in
	// the envelope.
	Placements []Placement
	// TombstoneOnEmpty makes the record's value null where the payload is NULL or has no bytes, envelope or not.
	TombstoneOnEmpty bool
	// CloudEvents, if not nil, adds the attributes of a CloudEvent.
	CloudEvents *CloudEvents

	// Compression of these records' batches, as of KafkaConfig.Compression, which is the default. Events that go to
	// one partition with another compression have batches of their own.
	Compression string
	// MaxRecordBytes is the largest record that is tried, instead of Config.MaxRecordBytes. 0: that one.
	MaxRecordBytes int

	// Poison says what becomes of an event that cannot be published. Default PolicyHalt.
	Poison Policy
	// DeadLetterTopic is where a copy of each dead letter goes once its row is committed; no event may go there. A copy
	// may be lost, or come twice, where the session ends; the row is there. Default none.
	DeadLetterTopic string
	// Source names where the events are from, in dead letters: their table.
	Source string
}

// Validate returns every problem of the route, joined, or nil.
func (r Route) Validate() error {
	_, err := newRouting(r)
	return err
}

// routing is a Route made ready.
type routing struct {
	parts   []part
	by      ref
	rewrite *rewrite // nil: parts make the topic
	allowed map[string]struct{}
	limited bool              // what the template makes must be allowed
	single  *ref              // the one value that makes the topic, nil where there are none or several
	byValue map[string]*topic // by that value; forgotten when it grows too large
	last    lastTopic

	plain     bool // nothing of what follows is set
	key       *ref
	partition *ref
	eventTime *ref
	headers   []placedHeader
	envelope  []member
	tombstone bool
	ce        *cloudEvents

	compression string
	most        int // bytes of a record; 0: Config.MaxRecordBytes

	poison Policy
	copyTo string // dead-letter topic
	source string
}

type placedHeader struct {
	ref  ref
	name []byte
}

// newRouting checks a route and makes it ready. All problems are returned at once.
func newRouting(r Route) (*routing, error) {
	rt := &routing{allowed: make(map[string]struct{}, len(r.Topics)), tombstone: r.TombstoneOnEmpty, poison: cmp.Or(r.Poison, PolicyHalt), copyTo: r.DeadLetterTopic, source: r.Source}
	var errs []error
	bad := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	for _, t := range r.Topics {
		if reason := checkTopic(t); reason != "" {
			bad(fmt.Errorf("topic %q: %s", t, reason))
		}
		rt.allowed[t] = struct{}{}
	}
	if !slices.Contains(Policies(), rt.poison) {
		bad(fmt.Errorf("poison policy %q: want halt, park or hold-key", r.Poison))
	}
	if reason := checkTopic(r.DeadLetterTopic); r.DeadLetterTopic != "" && reason != "" {
		bad(fmt.Errorf("dead-letter topic %q: %s", r.DeadLetterTopic, reason))
	}
	bad(rt.setTopic(r))
	rt.compression, rt.most = r.Compression, r.MaxRecordBytes
	if r.Compression != "" && !slices.Contains(Compressions(), r.Compression) {
		bad(fmt.Errorf("compression %q: want one of %s", r.Compression, strings.Join(Compressions(), ", ")))
	}
	if r.MaxRecordBytes != 0 && r.MaxRecordBytes < minRecordBytes {
		bad(fmt.Errorf("max record of %d bytes: want at least %d", r.MaxRecordBytes, minRecordBytes))
	}
	column := func(name, what string) *ref {
		if name == "" {
			return nil
		}
		found, err := newRef(name, r.Columns)
		if err != nil {
			bad(fmt.Errorf("%s: %w", what, err))
			return nil
		}
		return &found
	}
	rt.key, rt.eventTime = column(r.Key, "key"), column(r.EventTime, "event time")
	bad(rt.place(r))
	if r.CloudEvents != nil {
		var err error
		rt.ce, err = newCloudEvents(*r.CloudEvents, r.Columns)
		bad(err)
	}
	rt.plain = rt.partition == nil && rt.eventTime == nil && !rt.tombstone && rt.ce == nil && len(rt.headers)+len(rt.envelope) == 0
	return rt, errors.Join(errs...)
}

func (rt *routing) setTopic(r Route) (err error) {
	if r.Regex == "" {
		if rt.parts, err = parseTemplate(r.Topic, r.Columns); err != nil {
			return err
		}
		rt.limited = bare(rt.parts)
	} else {
		if rt.by, err = newRef(r.RouteBy, r.Columns); err != nil {
			return fmt.Errorf("route by: %w", err)
		}
		if rt.rewrite, err = newRewrite(r.Regex, r.Replacement); err != nil {
			return err
		}
		rt.limited = !rt.rewrite.constant()
	}
	if rt.rewrite != nil {
		rt.single = &rt.by
	} else if i := slices.IndexFunc(rt.parts, part.isValue); i >= 0 && !slices.ContainsFunc(rt.parts[i+1:], part.isValue) {
		rt.single = &rt.parts[i].ref
	}
	rt.byValue = map[string]*topic{}
	if rt.limited && len(r.Topics) == 0 {
		return errors.New("a topic that is nothing but the value of a column needs the list of topics that it may name")
	}
	return nil
}

func (rt *routing) place(r Route) error {
	var errs []error
	var names []string
	for _, p := range r.Placements {
		found, err := newRef(p.Column, r.Columns)
		if err != nil {
			errs = append(errs, fmt.Errorf("placement: %w", err))
			continue
		}
		h := header{[]byte(p.Alias), nil}
		switch p.Place {
		case PlaceHeader:
			if reason := checkHeader(h); reason != "" {
				errs = append(errs, fmt.Errorf("placement of %q: %s", p.Column, reason))
			}
			rt.headers = append(rt.headers, placedHeader{found, h.name})
		case PlaceEnvelope:
			if p.Alias == "payload" {
				errs = append(errs, fmt.Errorf("placement of %q: the envelope has a payload already", p.Column))
			}
			rt.envelope = append(rt.envelope, newMember(found, p.Alias))
		case PlacePartition:
			if rt.partition != nil {
				errs = append(errs, errors.New("placement: two columns are the partition"))
			}
			rt.partition = &found
		}
		name := fmt.Sprint(p.Place, " ", p.Alias)
		if p.Place != PlacePartition && slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("placement of %q: %q stands there twice", p.Column, p.Alias))
		}
		names = append(names, name)
	}
	return errors.Join(errs...)
}

// topic makes the name of the event's topic, in dst where it must be made. reason says why there is none.
func (rt *routing) topic(dst []byte, e *outbox.Committed) (name []byte, reason, hint string) {
	const notListed = "add the topic to the list of allowed topics, if it belongs there"
	limited := rt.limited
	switch {
	case e.Topic != nil:
		if _, ok := rt.allowed[string(e.Topic)]; !ok {
			return e.Topic, "its topic column names a topic that is not allowed", notListed
		}
		return e.Topic, "", ""
	case rt.rewrite != nil:
		v := rt.by.value(e)
		if len(v) == 0 {
			return nil, "it has no " + rt.by.name + " to make its topic from", "give it one, or a topic"
		}
		made, matched := rt.rewrite.topic(v)
		name, limited = append(dst, made...), limited || !matched
	default:
		if name, reason = expand(dst, rt.parts, e); reason != "" {
			return nil, reason, "give it one, or a topic"
		}
	}
	if limited {
		if _, ok := rt.allowed[string(name)]; !ok {
			return name, "one of its columns names a topic that is not allowed", notListed
		}
	}
	return name, "", ""
}

// lastTopic is the topic of the last event, and the value that made it or, if the event named one, its name. Most
// events go where the one before has gone.
type lastTopic struct {
	topic *topic
	named bool
	value []byte
}

func (l *lastTopic) set(t *topic, named bool, value []byte) {
	l.topic, l.named, l.value = t, named, append(l.value[:0], value...)
}

// remembered returns the topic of an earlier event with the same value.
func (rt *routing) remembered(e *outbox.Committed) *topic {
	value, named := e.Topic, e.Topic != nil
	if !named {
		if rt.single == nil {
			return nil
		}
		value = rt.single.value(e)
	}
	if rt.last.topic != nil && rt.last.named == named && bytes.Equal(value, rt.last.value) {
		return rt.last.topic
	}
	if named {
		return nil
	}
	t := rt.byValue[string(value)]
	if t != nil {
		rt.last.set(t, named, value)
	}
	return t
}

func (rt *routing) remember(e *outbox.Committed, t *topic) {
	if e.Topic != nil {
		rt.last.set(t, true, e.Topic)
		return
	}
	if rt.single == nil {
		return
	}
	if len(rt.byValue) >= maxTopicValues {
		clear(rt.byValue)
	}
	value := rt.single.value(e)
	rt.byValue[string(value)] = t
	rt.last.set(t, false, value)
}

// keyOf returns the record's key.
func (rt *routing) keyOf(e *outbox.Committed) []byte {
	if rt.key != nil {
		return rt.key.value(e)
	}
	return e.Key()
}

// partitionOf returns the record's partition among n; reason says why there is none.
func (rt *routing) partitionOf(e *outbox.Committed, key []byte, n int) (p int32, reason string) {
	if rt.partition == nil {
		return partitionOf(key, n), ""
	}
	v := rt.partition.value(e)
	if v == nil {
		return partitionOf(key, n), ""
	}
	wanted, err := strconv.ParseInt(string(v), 10, 32)
	if err != nil || wanted < 0 {
		return 0, "its column " + rt.partition.name + " is not the number of a partition"
	}
	if int(wanted) >= n {
		return 0, fmt.Sprintf("its column %s names partition %d, and the topic has %d", rt.partition.name, wanted, n)
	}
	return int32(wanted), ""
}

// timeOf returns the record's timestamp in milliseconds since 1970.
func (rt *routing) timeOf(e *outbox.Committed) int64 {
	x := rt.eventTime.column(e)
	if x.Kind == outbox.KindNumber {
		if ms, err := strconv.ParseInt(string(x.Value), 10, 64); err == nil && ms >= 0 {
			return ms
		}
	} else if ms, ok := milliseconds(x.Value); ok {
		return ms
	}
	return max(e.CommitTime.UnixMilli(), 0)
}

// milliseconds reads a timestamp in the server's ISO form; one without an offset is UTC.
func milliseconds(in []byte) (ms int64, ok bool) {
	var buf [48]byte
	if n := len(in); n >= 19 && n < len(buf)-3 {
		zoned := false
		for _, c := range in[19:] {
			zoned = zoned || c == '+' || c == '-'
		}
		if !zoned {
			in = append(append(buf[:0], in...), "+00"...)
		}
	}
	t, offset, ok := parseTimestamp(in)
	if !ok {
		return 0, false
	}
	utc := time.Date(t.year, time.Month(t.month), t.day, t.hour, t.minute, t.second-offset, t.micro*1000, time.UTC)
	return utc.UnixMilli(), utc.UnixMilli() >= 0
}

// apply fills what of the record depends on placements.
func (s *encoder) apply(rt *routing, e *outbox.Committed) (reason string) {
	r := &s.rec
	r.timed = rt.eventTime != nil
	if r.timed {
		r.time = rt.timeOf(e)
	}
	found := s.headers.found[:len(r.user)]
	enveloped := len(rt.envelope) > 0
	for i := range rt.headers {
		h := &rt.headers[i]
		v := h.ref.value(e)
		if v == nil {
			continue
		}
		if hasControl(v) {
			return "one of its columns that become headers has a carriage return, line feed or NUL"
		}
		found = append(found, header{h.name, v})
	}
	if rt.ce != nil {
		if found, reason = rt.ce.headers(found, e, r.occurredAt, enveloped); reason != "" {
			return reason
		}
	}
	s.headers.found, r.user = found, found
	switch {
	case rt.tombstone && len(e.Payload) == 0:
		r.value = nil
	case enveloped:
		s.value = appendEnvelope(s.value[:0], e, rt.envelope)
		r.value = s.value
	}
	return ""
}
