package deliver

import (
	"errors"
	"fmt"
	html "html/template"
	"slices"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"
)

func (p *parser) rule(name string, n node) {
	r := &Rule{Name: name}
	var channels node
	p.keys(n, map[string]func(node){
		"event_type":     func(n node) { r.EventType, _ = p.text(n) },
		"recipients":     func(n node) { r.Recipients = p.query(r, "recipients", n, eventParams()) },
		"eligible":       func(n node) { r.Eligible = p.query(r, "eligible", n, recipientParams()) },
		"discover":       func(n node) { r.Discover = p.query(r, "discover", n, nil) },
		"max_recipients": func(n node) { r.MaxRecipients = p.number(n, 1, 1<<31-1) },
		"not_before":     func(n node) { r.NotBefore = p.template(n) },
		"channels":       func(n node) { channels = n },
	})
	for _, need := range []struct {
		there bool
		what  string
	}{
		{r.EventType != "", "event_type is not set"}, {r.Recipients != nil, "recipients is not set"}, {channels.Node != nil, "channels is not set"},
		{r.Eligible != nil, "eligible is not set"},
	} {
		if !need.there && !p.toldBelow(n.path) {
			hint := ""
			if strings.HasPrefix(need.what, "eligible") {
				hint = "a query that returns one row, boolean and reason; SELECT true, '' where everybody may have it"
			}
			p.bad(n, need.what, hint)
		}
	}
	if channels.Node != nil {
		p.mapping(channels, func(channel string, n node) { p.ruleChannel(r, channel, n) })
		slices.SortStableFunc(r.Channels, func(a, b *RuleChannel) int {
			return slices.Index(p.rules.names(), a.Name) - slices.Index(p.rules.names(), b.Name)
		})
		if len(r.Channels) == 0 && !p.toldBelow(channels.path) {
			p.bad(channels, "is empty", "name a channel")
		}
	}
	p.rules.Rules = append(p.rules.Rules, r)
}

// toldBelow reports whether a mistake below path was told: one that follows from it is not told too.
func (p *parser) toldBelow(path string) bool {
	return slices.ContainsFunc(p.mistakes, func(m Mistake) bool { return strings.HasPrefix(m.Path, path+".") })
}

func (p *parser) ruleChannel(r *Rule, name string, n node) {
	c := p.rules.setting(name)
	if c == nil {
		p.bad(n, "is no channel of this file", suggest(name, p.rules.names(), "the channels are "+strings.Join(p.rules.names(), ", ")))
		return
	}
	rc := &RuleChannel{Name: name}
	r.Channels = append(r.Channels, rc)
	i := slices.IndexFunc(p.kinds, func(k Kind) bool { return k.Name == c.Kind })
	if i < 0 {
		return // told
	}
	given := map[string]bool{}
	known := map[string]func(node){}
	for _, f := range p.kinds[i].Fields {
		known[f.Name] = func(n node) {
			given[f.Name] = true
			if t := p.field(f, n); t != nil {
				rc.fields = append(rc.fields, t)
			}
		}
	}
	p.keys(n, known)
	for _, f := range p.kinds[i].Fields {
		if f.Required && !given[f.Name] && !p.toldBelow(n.path) {
			p.bad(n, f.Name+" is not set", "a channel of kind "+c.Kind+" needs it")
		}
	}
	if check := p.kinds[i].Check; check != nil && !p.toldBelow(n.path) {
		if err := check(c.settings, func(field string) bool { return given[field] }); err != nil {
			p.bad(n, err.Error(), "")
		}
	}
}

func (p *parser) field(f Field, n node) *fieldTemplate {
	t := &fieldTemplate{name: f.Name}
	switch {
	case f.HTML:
		page := p.page(n)
		if page == nil {
			return nil
		}
		t.text = page
		return t
	case !f.Object:
		text := p.template(n)
		if text == nil {
			return nil
		}
		t.text = text
		return t
	}
	t.parts = map[string]*template.Template{}
	p.mapping(n, func(key string, value node) {
		if part := p.template(value); part != nil {
			t.parts[key] = part
		}
	})
	return t
}

func (p *parser) template(n node) *template.Template {
	text, ok := p.text(n)
	if !ok {
		return nil
	}
	t, err := newTemplate(n.path, text)
	if err != nil {
		p.bad(n, strings.TrimPrefix(err.Error(), "template: "), "it is a template of Go's text/template")
		return nil
	}
	return t
}

// page is template for HTML.
func (p *parser) page(n node) *html.Template {
	text, ok := p.text(n)
	if !ok {
		return nil
	}
	t, err := newPage(n.path, text)
	if err != nil {
		p.bad(n, strings.TrimPrefix(strings.TrimPrefix(err.Error(), "html/"), "template: "), "it is a template of Go's html/template")
		return nil
	}
	return t
}

func (p *parser) query(r *Rule, field string, n node, allowed []string) *Query {
	text, ok := p.text(n)
	if !ok {
		return nil
	}
	q, err := newQuery(text, allowed)
	if err != nil {
		hint := ""
		if u, ok := errors.AsType[*unknownParam](err); ok {
			hint = u.Hint()
		}
		p.bad(n, err.Error(), hint)
		return nil
	}
	q.rule, q.field, q.line, q.column = r.Name, field, n.Line, n.Column
	switch {
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0: // the text begins on the next line, without its indentation
		q.line = n.Line + 1
		if n.Line < len(p.lines) {
			q.indent = len(p.lines[n.Line]) - len(strings.TrimLeft(p.lines[n.Line], " "))
		}
		q.column = q.indent + 1
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		q.column++
	}
	return q
}

// across checks what rules demand of each other.
func (p *parser) across(n node) {
	if len(p.rules.Rules) == 0 && len(p.mistakes) == 0 {
		p.bad(n, "is empty", "name a rule")
	}
	type use struct{ eventType, channel string }
	used := map[use]string{}
	for _, r := range p.rules.Rules {
		for _, c := range r.Channels {
			u := use{r.EventType, c.Name}
			if other, taken := used[u]; taken {
				p.bad(n, fmt.Sprintf("rules %q and %q both deliver %s on channel %s", other, r.Name, r.EventType, c.Name),
					"an event goes once to a recipient on a channel: make one rule of them, or name another channel")
			}
			used[u] = r.Name
			if after := p.rules.setting(c.Name).After; after != "" && p.rules.setting(after) != nil && r.channel(after) == nil {
				p.bad(n, fmt.Sprintf("rule %q uses channel %s, which comes after %s, and not %s", r.Name, c.Name, after, after),
					"it would wait for ever: add channel "+after+" to the rule")
			}
		}
	}
}
