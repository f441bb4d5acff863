package deliver

import (
	"encoding/json"
	"errors"
	"fmt"
	html "html/template"
	"io"
	"strings"
	"text/template"
	"time"
)

// fieldTemplate makes the value of a field of a rule's channel: one text, or an object of texts.
type fieldTemplate struct {
	name  string
	text  executor
	parts map[string]*template.Template // of an object
}

// executor is a template of text/template, or one of html/template.
type executor interface {
	Execute(w io.Writer, view any) error
}

// newTemplate parses text. A value that is not there is an error when it is executed, and not "<no value>".
func newTemplate(name, text string) (*template.Template, error) {
	return template.New(name).Option("missingkey=error").Funcs(template.FuncMap{"json": jsonText}).Parse(text)
}

// newPage is newTemplate for HTML: what is filled in is escaped. That is worked out now, and not at the first delivery.
func newPage(name, text string) (*html.Template, error) {
	t, err := html.New(name).Option("missingkey=error").Funcs(html.FuncMap{"json": jsonText}).Parse(text)
	if err != nil {
		return nil, err
	}
	// That the values are missing does not matter here.
	if unsafe, ok := errors.AsType[*html.Error](t.Execute(io.Discard, nil)); ok {
		return nil, unsafe
	}
	return t, nil
}

func jsonText(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}

// view is what templates see.
//
//	.event      id, key, type, tenant, aggregate_type, aggregate_id, occurred_at
//	.payload    the payload
//	.recipient  key (user:42), type (user), id (42)
//	.data       the columns of the eligibility query after its first two, by name
func (e *Event) view(recipient string, data map[string]any) map[string]any {
	v := map[string]any{
		"event": map[string]any{
			"id": e.ID, "key": e.Key, "type": e.Type, "tenant": e.Tenant, "aggregate_type": e.AggregateType,
			"aggregate_id": e.AggregateID, "occurred_at": e.OccurredAt,
		},
		"payload": e.value,
	}
	if recipient != "" {
		typ, id := splitRecipient(recipient)
		v["recipient"] = map[string]any{"key": recipient, "type": typ, "id": id}
	}
	if data == nil {
		data = map[string]any{}
	}
	v["data"] = data
	return v
}

func (f *fieldTemplate) execute(view any) (string, error) {
	if f.parts == nil {
		return execute(f.text, view)
	}
	object := make(map[string]string, len(f.parts))
	for name, t := range f.parts {
		text, err := execute(t, view)
		if err != nil {
			return "", err
		}
		object[name] = text
	}
	return jsonText(object)
}

func execute(t executor, view any) (string, error) {
	var b strings.Builder
	if err := t.Execute(&b, view); err != nil {
		// Its text names the template's place and the field that is missing, and no value.
		return "", err
	}
	if strings.IndexByte(b.String(), 0) >= 0 {
		return "", errors.New("a template makes a NUL character")
	}
	return b.String(), nil
}

// notBefore is when deliveries of e may begin; zero: at once.
func (r *Rule) notBefore(e *Event) (time.Time, error) {
	if r.NotBefore == nil {
		return time.Time{}, nil
	}
	text, err := execute(r.NotBefore, e.view("", nil))
	if err != nil {
		return time.Time{}, &RecordError{ClassTemplate, err.Error()}
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, &RecordError{ClassTemplate, fmt.Sprintf("rule %q: not_before is not a time such as 2026-01-31T09:00:00Z", r.Name)}
	}
	return t, nil
}

// render makes the fields of one delivery.
func (c *RuleChannel) render(view any) (map[string]string, error) {
	fields := make(map[string]string, len(c.fields))
	for _, f := range c.fields {
		text, err := f.execute(view)
		if err != nil {
			return nil, fmt.Errorf("template: %w", err)
		}
		fields[f.name] = text
	}
	return fields, nil
}
