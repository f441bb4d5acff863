//go:build !nodemo

package main

import (
	"encoding/json"
	"io"
	"math"
	"time"

	"github.com/outboxrelay/relay/internal/demo"
)

// demoJSON shows a demo to programs: one object a line, told apart by type. Fields are API.
type demoJSON struct {
	w io.Writer
}

type demoStepLine struct {
	Type    string  `json:"type"` // step: a part of the preparation begins, or lasts
	Step    string  `json:"step"`
	Seconds float64 `json:"seconds"` // that it has lasted
}

type demoReadyLine struct {
	Type            string   `json:"type"`         // ready: the relay streams, writing begins
	PostgresURL     string   `json:"postgres_url"` // with a password that is worth nothing when the demo ends
	PostgresVersion string   `json:"postgres_version"`
	Brokers         []string `json:"brokers"`
	Topic           string   `json:"topic"`
	Partitions      int      `json:"partitions"`
	AdminURL        string   `json:"admin_url"`
}

type demoProgressLine struct {
	Type       string          `json:"type"` // progress: once a second
	Seconds    float64         `json:"seconds"`
	Committed  int             `json:"committed"`
	RolledBack int             `json:"rolled_back"`
	Published  int             `json:"published"`
	InFlight   int             `json:"in_flight"`
	LagSeconds float64         `json:"lag_seconds"` // age of the oldest event in flight
	Last       *demoRecordLine `json:"last"`        // the latest record; null before the first
}

type demoRecordLine struct {
	ID            string  `json:"id"`
	AggregateType string  `json:"aggregate_type"`
	AggregateID   string  `json:"aggregate_id"`
	EventType     string  `json:"event_type"`
	Partition     int32   `json:"partition"`
	Offset        int64   `json:"offset"`
	DelaySeconds  float64 `json:"delay_seconds"` // from its commit to the consumer
}

type demoSummaryLine struct {
	Type              string  `json:"type"` // summary: the last line
	Committed         int     `json:"committed"`
	RolledBack        int     `json:"rolled_back"`
	Published         int     `json:"published"`
	Lost              int     `json:"lost"`
	Duplicates        int     `json:"duplicates"`
	Ghosts            int     `json:"ghosts"`
	OutOfOrder        int     `json:"out_of_order"`
	Seconds           float64 `json:"seconds"`
	FirstEventSeconds float64 `json:"first_event_seconds"`
	PostgresVersion   string  `json:"postgres_version"`
}

func (v *demoJSON) listener() demo.Listener {
	return demo.Listener{
		Step: func(name string, elapsed time.Duration) {
			v.print(demoStepLine{Type: "step", Step: name, Seconds: seconds(elapsed)})
		},
		Ready: func(t demo.Target) {
			v.print(demoReadyLine{
				Type: "ready", PostgresURL: t.PostgresURL, PostgresVersion: t.PostgresVersion, Brokers: t.Brokers,
				Topic: t.Topic, Partitions: t.Partitions, AdminURL: "http://" + t.AdminAddress,
			})
		},
		Progress: func(p demo.Progress) {
			line := demoProgressLine{
				Type: "progress", Seconds: seconds(p.Elapsed), Committed: p.Committed, RolledBack: p.RolledBack,
				Published: p.Published, InFlight: p.InFlight, LagSeconds: seconds(p.Lag),
			}
			if a := p.Last; a != nil {
				line.Last = &demoRecordLine{
					ID: a.EventID, AggregateType: a.AggregateType, AggregateID: a.AggregateID, EventType: a.EventType,
					Partition: a.Partition, Offset: a.Offset, DelaySeconds: seconds(a.Delay),
				}
			}
			v.print(line)
		},
	}
}

func (v *demoJSON) stopping() {}

func (v *demoJSON) log(w io.Writer) io.Writer { return w }

func (v *demoJSON) summary(s demo.Summary) {
	v.print(demoSummaryLine{
		Type: "summary", Committed: s.Committed, RolledBack: s.RolledBack, Published: s.Published,
		Lost: s.Lost, Duplicates: s.Duplicates, Ghosts: s.Ghosts, OutOfOrder: s.OutOfOrder,
		Seconds: seconds(s.Elapsed), FirstEventSeconds: seconds(s.FirstEvent), PostgresVersion: s.PostgresVersion,
	})
}

// print writes a line. The writer remembers what goes wrong.
func (v *demoJSON) print(line any) {
	enc := json.NewEncoder(v.w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(line)
}

// seconds rounds to a tenth of a millisecond.
func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e4) / 1e4 }
