package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// series is a data set and where it stands on the axis of a plot.
type series struct {
	*dataset
	x int
}

// datasets lists the data sets that the options ask for: one for each k, or for each value of what is varied.
func (b *bench) datasets() ([]series, error) {
	o := b.opt
	var all []series
	add := func(x int, edit func(*dataset)) {
		d := &dataset{name: fmt.Sprintf("bench_%d", len(all)+1), rows: o.rows, k: o.k[0], keys: o.keys, payload: o.payload, partitions: o.partitions}
		edit(d)
		all = append(all, series{d, x})
	}
	if o.vary == "" {
		for _, k := range o.k {
			add(k, func(d *dataset) { d.k = k })
		}
		return all, nil
	}
	name, values, found := strings.Cut(o.vary, "=")
	if !found {
		return nil, fmt.Errorf("%w: --vary is name=value,value", errUsage)
	}
	for text := range strings.SplitSeq(values, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, errors.Join(errUsage, fmt.Errorf("--vary: %q is not a number from 1", text))
		}
		field := map[string]func(*dataset) *int{
			"rows": func(d *dataset) *int { return &d.rows }, "k": func(d *dataset) *int { return &d.k },
			"keys": func(d *dataset) *int { return &d.keys }, "partitions": func(d *dataset) *int { return &d.partitions },
			"payload": func(d *dataset) *int { return &d.payload },
		}[name]
		if field == nil {
			return nil, fmt.Errorf("%w: --vary cannot vary %q", errUsage, name)
		}
		if name == "payload" && n < minPayload {
			return nil, fmt.Errorf("%w: --vary: a payload has at least %d bytes", errUsage, minPayload)
		}
		add(n, func(d *dataset) { *field(d) = n })
	}
	return all, nil
}
