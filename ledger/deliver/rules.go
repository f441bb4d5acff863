package deliver

import (
	"slices"
	"text/template"
	"time"
)

// Rules say which events are delivered to whom, by which means, and when not. ParseRules makes them.
type Rules struct {
	Rules    []*Rule           // in the order of the file
	Channels []*ChannelSetting // a channel after the one that it follows

	// UnknownTypes is what becomes of records whose event type no rule names, ForeignRecords of those that lack what
	// every record of the relay has.
	UnknownTypes, ForeignRecords Policy
}

// Policy is what becomes of records that no rule handles.
type Policy string

// The policies.
const (
	Ignore Policy = "ignore" // counted, and no more
	Park   Policy = "park"   // kept whole in ledger.parked_records
)

// Rule is what happens with events of one type.
type Rule struct {
	Name      string
	EventType string
	// Recipients returns one text column: who gets the event, such as user:42.
	Recipients *Query
	// MaxRecipients refuses an event for more; 0: any number. It costs counting them first.
	MaxRecipients int
	// Eligible returns exactly one row: a boolean and a reason, and further columns for templates. It is asked right
	// before each delivery.
	Eligible *Query
	// Discover returns what should have been notified by now, see Worker.Reconcile. Nil: the rule has none.
	Discover *Query
	// NotBefore makes the time before which nothing is delivered. Nil: at once.
	NotBefore *template.Template
	Channels  []*RuleChannel // a channel after the one that it follows
}

// RuleChannel is one channel of a rule.
type RuleChannel struct {
	Name   string
	fields []*fieldTemplate
}

// ChannelSetting is a channel: its kind, and what the ledger is told about it. What is zero stays as the ledger has it.
type ChannelSetting struct {
	Name           string
	Kind           string
	After          string // the channel that must have delivered before
	OnUncertain    string // resend, probe or hold
	MaxAttempts    int
	BackoffMin     time.Duration
	BackoffMax     time.Duration
	Lease          time.Duration
	ProviderWindow time.Duration
	// Concurrency is how many deliveries a process makes at a time on the channel. Default 8.
	Concurrency int

	settings Settings // of its kind
	sender   Channel  // or
	writer   Writer
}

// mode is what the ledger calls the difference between an effect outside and a row of its own database.
func (c *ChannelSetting) mode() string {
	if c.writer != nil {
		return "simple"
	}
	return "guarded"
}

// byType returns the rules of an event type.
func (r *Rules) byType(eventType string) []*Rule {
	var list []*Rule
	for _, rule := range r.Rules {
		if rule.EventType == eventType {
			list = append(list, rule)
		}
	}
	return list
}

// of returns the rule, and its part, that says how an event type is delivered on a channel; nil: none does.
func (r *Rules) of(eventType, channel string) (*Rule, *RuleChannel) {
	for _, rule := range r.byType(eventType) {
		if c := rule.channel(channel); c != nil {
			return rule, c
		}
	}
	return nil, nil
}

func (r *Rule) channel(name string) *RuleChannel {
	i := slices.IndexFunc(r.Channels, func(c *RuleChannel) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return r.Channels[i]
}

// names lists the channels.
func (r *Rules) names() []string {
	list := make([]string, len(r.Channels))
	for i, c := range r.Channels {
		list[i] = c.Name
	}
	return list
}

func (r *Rules) setting(channel string) *ChannelSetting {
	i := slices.IndexFunc(r.Channels, func(c *ChannelSetting) bool { return c.Name == channel })
	if i < 0 {
		return nil
	}
	return r.Channels[i]
}
