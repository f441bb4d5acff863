package deliver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// ParseRules reads a rules file. kinds are the kinds of channels it may use. Errors: Mistakes, all of them, each with
// its place.
func ParseRules(text []byte, kinds []Kind) (*Rules, error) {
	p := &parser{rules: &Rules{UnknownTypes: Ignore, ForeignRecords: Park}, kinds: kinds, lines: strings.Split(string(text), "\n")}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, Mistakes{{Path: "file", Problem: "is empty", Hint: "it needs channels and rules"}}
	case err != nil:
		return nil, Mistakes{{Path: "file", Problem: "is not YAML" + yamlLine(err)}}
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, Mistakes{{Path: "file", Problem: "has more than one document"}}
	}
	p.file(doc.Content[0])
	if err := p.mistakes.errorOrNil(); err != nil {
		return nil, err
	}
	return p.rules, nil
}

// yamlLine is the line that the parser tells; what it quotes is left out.
func yamlLine(err error) string {
	if m := regexp.MustCompile(`line \d+`).FindString(err.Error()); m != "" {
		return ", " + m
	}
	return ""
}

type parser struct {
	rules    *Rules
	kinds    []Kind
	lines    []string // of the file
	mistakes Mistakes
}

// node is a value with its path.
type node struct {
	*yaml.Node
	path string
}

func (p *parser) bad(n node, problem, hint string) {
	p.mistakes = append(p.mistakes, Mistake{Path: n.path, Line: n.Line, Column: n.Column, Problem: problem, Hint: hint})
}

// mapping calls f with each key. An anchor is followed.
func (p *parser) mapping(n node, f func(key string, value node)) {
	if n.Kind == yaml.AliasNode {
		n.Node = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // nothing below the key
	}
	if n.Kind != yaml.MappingNode {
		p.bad(n, "is not a mapping", "write its keys below it, indented")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		path := key
		if n.path != "" {
			path = n.path + "." + key
		}
		value := node{n.Content[i+1], path}
		if value.Kind == yaml.AliasNode {
			value.Node = value.Alias
		}
		if seen[key] {
			p.bad(node{n.Content[i], path}, "is there twice", "keep one of them")
			continue
		}
		seen[key] = true
		f(key, value)
	}
}

// keys is mapping for a closed set of keys.
func (p *parser) keys(n node, known map[string]func(node)) {
	p.mapping(n, func(key string, value node) {
		if f := known[key]; f != nil {
			f(value)
			return
		}
		names := make([]string, 0, len(known))
		for k := range known {
			names = append(names, k)
		}
		slices.Sort(names)
		p.bad(value, "unknown key", suggest(key, names, "the keys here are "+strings.Join(names, ", ")))
	})
}

func (p *parser) text(n node) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		p.bad(n, "is not a text", "write one value")
		return "", false
	}
	return n.Value, true
}

func (p *parser) file(root *yaml.Node) {
	var channels, rules node
	p.keys(node{root, ""}, map[string]func(node){
		"channels":        func(n node) { channels = n },
		"rules":           func(n node) { rules = n },
		"unknown_types":   func(n node) { p.policy(n, &p.rules.UnknownTypes) },
		"foreign_records": func(n node) { p.policy(n, &p.rules.ForeignRecords) },
	})
	if len(p.mistakes) > 0 && channels.Node == nil {
		return
	}
	if channels.Node == nil || rules.Node == nil {
		p.bad(node{root, "file"}, "needs channels and rules", "docs/notifications.md has an example")
		return
	}
	p.mapping(channels, p.channel)
	p.orderChannels(channels)
	p.checkAfter(channels)
	p.mapping(rules, p.rule)
	p.across(rules)
}

func (p *parser) policy(n node, to *Policy) {
	text, ok := p.text(n)
	if ok && text != string(Ignore) && text != string(Park) {
		p.bad(n, fmt.Sprintf("%q is not a choice", text), "use ignore or park")
	}
	*to = Policy(text)
}

func (p *parser) channel(name string, n node) {
	c := &ChannelSetting{Name: name, Kind: name, Concurrency: 8}
	if len(name) == 0 || len([]rune(name)) > 64 || name == "*" || strings.HasPrefix(name, "listener:") {
		p.bad(n, "is not a channel's name", "use 1 to 64 characters, not * and not listener:")
	}
	settings, places := Settings{}, map[string]node{}
	common := map[string]func(node){
		"kind":  func(n node) { c.Kind, _ = p.text(n) },
		"after": func(n node) { c.After, _ = p.text(n) },
		"on_uncertain": func(n node) {
			if c.OnUncertain, _ = p.text(n); !slices.Contains([]string{"resend", "probe", "hold"}, c.OnUncertain) {
				p.bad(n, fmt.Sprintf("%q is not a policy", c.OnUncertain), "use resend, probe or hold")
			}
		},
		"max_attempts":    func(n node) { c.MaxAttempts = p.number(n, 1, 1000000) },
		"concurrency":     func(n node) { c.Concurrency = p.number(n, 1, 1000) },
		"lease":           func(n node) { c.Lease = p.duration(n) },
		"provider_window": func(n node) { c.ProviderWindow = p.duration(n) },
		"backoff": func(n node) {
			text, _ := p.text(n)
			low, high, found := strings.Cut(text, "..")
			if !found {
				p.bad(n, "is not a range", "write the first and the longest wait, like 5s..1h")
				return
			}
			c.BackoffMin, c.BackoffMax = p.span(n, low), p.span(n, high)
		},
	}
	var kinds []string
	for _, k := range p.kinds {
		kinds = append(kinds, k.Name)
		for _, s := range k.Settings {
			common[s.Name] = func(n node) { settings[s.Name], _ = p.text(n); places[s.Name] = n }
		}
	}
	p.keys(n, common)
	p.rules.Channels = append(p.rules.Channels, c)
	i := slices.IndexFunc(p.kinds, func(k Kind) bool { return k.Name == c.Kind })
	if i < 0 {
		p.bad(n, fmt.Sprintf("%q is not a kind of channel", c.Kind), suggest(c.Kind, kinds, "set kind to one of "+strings.Join(kinds, ", ")))
		return
	}
	p.build(n, c, p.kinds[i], settings, places)
}

// build makes what delivers.
func (p *parser) build(n node, c *ChannelSetting, k Kind, settings Settings, places map[string]node) {
	for name, at := range places {
		if !slices.ContainsFunc(k.Settings, func(s Setting) bool { return s.Name == name }) {
			p.bad(at, fmt.Sprintf("is no setting of a channel of kind %s", k.Name), "leave it out")
		}
	}
	for _, s := range k.Settings {
		if s.Required && settings[s.Name] == "" {
			p.bad(n, s.Name+" is not set", "")
			return
		}
	}
	if k.Harmless && c.OnUncertain == "" {
		c.OnUncertain = "resend"
	}
	c.settings = settings
	var err error
	if k.NewWriter != nil {
		c.writer, err = k.NewWriter(settings)
	} else {
		c.sender, err = k.New(settings)
	}
	if err != nil {
		p.bad(n, err.Error(), "")
		return
	}
	if _, asks := c.sender.(Prober); c.OnUncertain == "probe" && !asks {
		p.bad(n, "on_uncertain is probe, and this kind of channel cannot ask", "use resend or hold")
	}
}

// orderChannels puts a channel behind the one that it follows.
func (p *parser) orderChannels(n node) {
	var ordered []*ChannelSetting
	placed := map[string]bool{}
	for len(ordered) < len(p.rules.Channels) {
		before := len(ordered)
		for _, c := range p.rules.Channels {
			if !placed[c.Name] && (c.After == "" || placed[c.After]) {
				ordered = append(ordered, c)
				placed[c.Name] = true
			}
		}
		if len(ordered) == before {
			for _, c := range p.rules.Channels {
				if !placed[c.Name] {
					p.bad(n, fmt.Sprintf("channel %q: after %q leads to no channel of this file, or back to itself", c.Name, c.After),
						suggest(c.After, p.rules.names(), "name a channel of this file"))
				}
			}
			return
		}
	}
	p.rules.Channels = ordered
}

func (p *parser) number(n node, low, high int) int {
	text, ok := p.text(n)
	if !ok {
		return 0
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < low || v > high {
		p.bad(n, fmt.Sprintf("%q is not a number from %d to %d", text, low, high), "")
	}
	return v
}

func (p *parser) duration(n node) time.Duration {
	text, ok := p.text(n)
	if !ok {
		return 0
	}
	return p.span(n, text)
}

func (p *parser) span(n node, text string) time.Duration {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d <= 0 {
		p.bad(n, fmt.Sprintf("%q is not a duration", text), "write one with its unit, like 500ms, 20s or 1h30m")
		return 0
	}
	return d
}
