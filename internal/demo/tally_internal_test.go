package demo

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
)

func TestTally_judge(t *testing.T) {
	t.Parallel()
	ids := map[string]uuid.UUID{}
	for _, name := range []string{"a1", "a2", "a3", "b1", "b2", "rolled back"} {
		ids[name] = uuid.New()
	}
	truth := map[uuid.UUID]change{
		ids["a1"]: {1, 1}, ids["a2"]: {1, 2}, ids["a3"]: {1, 3}, ids["b1"]: {2, 1}, ids["b2"]: {2, 2},
	}
	for name, tt := range map[string]struct {
		records []string
		want    Summary
	}{
		"exact":                    {[]string{"a1", "b1", "a2", "b2", "a3"}, Summary{Published: 5}},
		"nothing":                  {nil, Summary{Lost: 5}},
		"lost":                     {[]string{"a1", "b1", "b2", "a3"}, Summary{Published: 4, Lost: 1}},
		"duplicate":                {[]string{"a1", "b1", "a2", "a1", "a2", "b2", "a3"}, Summary{Published: 5, Duplicates: 2}},
		"ghost":                    {[]string{"a1", "b1", "rolled back", "a2", "b2", "a3"}, Summary{Published: 6, Ghosts: 1}},
		"ghost in another's place": {[]string{"a1", "b1", "rolled back", "b2", "a3"}, Summary{Published: 5, Ghosts: 1, Lost: 1}},
		"without an id":            {[]string{"a1", "b1", "a2", "b2", "a3", "none"}, Summary{Published: 5, Ghosts: 1}},
		"out of order":             {[]string{"a2", "b1", "a1", "b2", "a3"}, Summary{Published: 5, OutOfOrder: 1}},
		"order of others":          {[]string{"b1", "b2", "a1", "a2", "a3"}, Summary{Published: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tally := newTally(time.Now())
			for _, r := range tt.records {
				a := Arrival{EventID: "no id"}
				if id, ok := ids[r]; ok {
					a.EventID = id.String()
				}
				tally.arrived(a)
			}
			tally.rollBack(7)
			tt.want.Committed, tt.want.RolledBack = 5, 7
			got := tally.judge(truth)
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Summary{}, "Elapsed", "FirstEvent")); diff != "" {
				t.Errorf("judge (-want +got):\n%s", diff)
			}
			if wrong := got.Lost+got.Ghosts+got.Duplicates+got.OutOfOrder > 0; (got.Err() != nil) != wrong {
				t.Errorf("error %v for %+v", got.Err(), got)
			}
		})
	}
}

// An event may arrive before its COMMIT is answered, and the writers may end before or after the last one arrives.
func TestTally_settled(t *testing.T) {
	t.Parallel()
	settled := func(t *tally) bool {
		select {
		case <-t.settled:
			return true
		default:
			return false
		}
	}
	synctest.Test(t, func(t *testing.T) {
		tally := newTally(time.Now())
		first, second := uuid.New(), uuid.New()
		tally.committing([]uuid.UUID{first})
		time.Sleep(2 * time.Second)
		if p := tally.progress(); p.InFlight != 1 || p.Lag != 2*time.Second || tally.silence() != 2*time.Second {
			t.Errorf("in flight %d, lag %v, silence %v", p.InFlight, p.Lag, tally.silence())
		}
		tally.arrived(Arrival{EventID: first.String()})
		if p := tally.progress(); p.InFlight != 0 || p.Lag != 0 || p.Last == nil || p.Last.Delay != 2*time.Second || tally.silence() != 0 {
			t.Errorf("after the arrival: %+v, silence %v", p, tally.silence())
		}
		if settled(tally) {
			t.Error("settled while writers write")
		}
		tally.committing([]uuid.UUID{second})
		tally.wrote()
		if settled(tally) {
			t.Error("settled with an event in flight")
		}
		tally.arrived(Arrival{EventID: first.String()}) // again
		if settled(tally) {
			t.Error("settled by a duplicate")
		}
		tally.arrived(Arrival{EventID: second.String()})
		tally.arrived(Arrival{EventID: second.String()})
		if !settled(tally) {
			t.Error("not settled when everything has arrived")
		}
	})
}

func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := newPace(25, 10)
		taken := 0
		for n := p.take(t.Context(), 2); n > 0; n = p.take(t.Context(), 2) {
			taken += n
		}
		if took := time.Since(began); taken != 25 || took != 2400*time.Millisecond {
			t.Errorf("took %d events within %v, want 25, the last after 2.4s", taken, took)
		}
		began = time.Now()
		p = newPace(1000, 0)
		for p.take(t.Context(), 3) > 0 {
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("without a rate: took %v", took)
		}
	})
}
