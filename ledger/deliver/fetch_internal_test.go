package deliver

import (
	"errors"
	"testing"

	"github.com/segmentio/kafka-go/protocol"
)

// broken is a batch that cannot be decoded to its end.
type broken struct{ protocol.RecordReader }

func (b broken) ReadRecord() (*protocol.Record, error) {
	rec, err := b.RecordReader.ReadRecord()
	if err != nil {
		return nil, errors.New("broken")
	}
	return rec, nil
}

func records(offsets ...int64) protocol.RecordReader {
	var list []protocol.Record
	for _, o := range offsets {
		list = append(list, protocol.Record{Offset: o, Value: protocol.NewBytes([]byte("v"))})
	}
	return protocol.NewRecordReader(list...)
}

func TestFetcher_read(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		parts    []protocol.RecordReader
		end      int64
		got      int   // records
		next     int64 // from 10
		mustFail bool
	}{
		"records":            {[]protocol.RecordReader{records(10, 11), records(12)}, 13, 3, 13, false},
		"from the middle":    {[]protocol.RecordReader{records(8, 9, 10)}, 11, 1, 11, false},
		"a marker":           {[]protocol.RecordReader{&protocol.ControlBatch{Records: records(10)}}, 11, 0, 11, false},
		"behind a marker":    {[]protocol.RecordReader{&protocol.ControlBatch{Records: records(10)}, records(11)}, 12, 1, 12, false},
		"compacted":          {[]protocol.RecordReader{records(14)}, 20, 1, 15, false},
		"compacted to empty": {[]protocol.RecordReader{records()}, 20, 0, 11, false},
		"nothing there":      {nil, 10, 0, 10, false},
		"broken":             {[]protocol.RecordReader{records(10), broken{records(11, 12)}}, 13, 0, 10, true},
	} {
		f := &fetcher{next: 10}
		b := batch{end: c.end}
		err := f.read(&protocol.RecordStream{Records: c.parts}, &b)
		if len(b.records) != c.got || f.next != c.next || (err != nil) != c.mustFail || b.moved != (c.next > 10) {
			t.Errorf("%s: %d records, next %d, moved %t, error %v", name, len(b.records), f.next, b.moved, err)
		}
	}
}
