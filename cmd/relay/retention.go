package main

import (
	"fmt"
	"time"

	"github.com/outboxrelay/relay/cdc"
)

// RetentionConfig says how long rows stay that nothing needs any more. All of it is off by default.
type RetentionConfig struct {
	// Age is how old the event of a published row becomes before the row is deleted. Default 0: it stays for ever.
	// At least 1m.
	Age time.Duration
	// Interval is the time between two looks for such rows. Default 10m; 1s to 24h.
	Interval time.Duration
	// Batch is how many rows one transaction deletes at most. Default 1000; 1 to 100000.
	Batch int
	// Requests is how long requests that are over stay. Default 0: for ever.
	Requests time.Duration
	// DeadLetters is how long dead letters stay that were published or discarded, and longer while their row does.
	// Default 0: for ever.
	DeadLetters time.Duration
}

const (
	minRetention  = time.Minute
	retentionHint = "write a duration of 1m or more, like 168h for a week, or 0s to keep everything"
)

func (c *Config) validateRetention(add addMistake) {
	r := &c.Retention
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"age", r.Age}, {"requests", r.Requests}, {"dead_letters", r.DeadLetters}} {
		if d.value != 0 && d.value < minRetention {
			add("retention."+d.key, fmt.Sprintf("%s is out of range", d.value), retentionHint)
		}
	}
	if r.Interval < time.Second || r.Interval > 24*time.Hour {
		add("retention.interval", fmt.Sprintf("%s is out of range", r.Interval), "use 1s to 24h")
	}
	if r.Batch < 1 || r.Batch > 100_000 {
		add("retention.batch", fmt.Sprintf("%d is out of range", r.Batch), "use 1 to 100000")
	}
	for i := range c.Tables {
		if _, err := c.Tables[i].retention(r.Age); err != nil {
			add(fmt.Sprintf("tables[%d].retention", i), fmt.Sprintf("%s is not a duration", quoted(c.Tables[i].Retention)), "write one of 1m or more, like 168h, or off")
		}
		if c.Tables[i].Retention != "" && c.Tables[i].Retention != "off" && !c.Tables[i].knowsTime() {
			add(fmt.Sprintf("tables[%d].retention", i), "no column is the event's time", "map columns.occurred_at, or leave it out")
		}
	}
}

// retention is how old the table's rows become; 0: for ever.
func (t *TableConfig) retention(other time.Duration) (time.Duration, error) {
	switch t.Retention {
	case "":
		if !t.knowsTime() { // what is said of all tables is not meant for one whose rows have no age
			return 0, nil
		}
		return other, nil
	case "off":
		return 0, nil
	}
	d, err := time.ParseDuration(t.Retention)
	if err == nil && d < minRetention {
		err = fmt.Errorf("%s is out of range", d)
	}
	return d, err
}

// knowsTime reports whether a column is the event's time.
func (t *TableConfig) knowsTime() bool {
	column, mapped := t.Columns["occurred_at"]
	native := t.Preset == "native" || t.Preset == "" && len(t.Columns) == 0
	return mapped && column != "" || !mapped && native
}

// retentions lists the tables whose rows are deleted at some age. The configuration is checked.
func (c *Config) retentions() (list []cdc.Retention) {
	if len(c.Tables) == 0 && c.Retention.Age > 0 {
		return []cdc.Retention{{Table: c.Postgres.Table, Age: c.Retention.Age}}
	}
	for i := range c.Tables {
		if age, err := c.Tables[i].retention(c.Retention.Age); err == nil && age > 0 {
			list = append(list, cdc.Retention{Table: c.Tables[i].Name, Age: age})
		}
	}
	return list
}
