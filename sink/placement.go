package sink

import (
	"errors"
	"fmt"
	"strings"
)

// Place is where the value of a further column goes.
type Place uint8

// The places.
const (
	PlaceHeader    Place = iota // a header of the record
	PlaceEnvelope               // a member of the JSON object that the value becomes
	PlacePartition              // the number of the record's partition
)

// Placement says where the value of a column goes, and under which name.
type Placement struct {
	Column string
	Place  Place
	Alias  string // the column's name unless another is given
}

// ParsePlacements reads a list as Debezium's table.fields.additional.placement has it:
// column:header|envelope|partition[:alias], separated by commas, with spaces where one likes.
func ParsePlacements(list string) ([]Placement, error) {
	var out []Placement
	var errs []error
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	for entry := range strings.SplitSeq(list, ",") {
		parts := strings.Split(entry, ":")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		p := Placement{Column: parts[0], Alias: parts[len(parts)-1]}
		if len(parts) < 2 || len(parts) > 3 || p.Column == "" || p.Alias == "" {
			errs = append(errs, fmt.Errorf("placement %q: write column:place or column:place:alias", strings.TrimSpace(entry)))
			continue
		}
		if len(parts) == 2 {
			p.Alias = p.Column
		}
		switch strings.ToLower(parts[1]) {
		case "header":
			p.Place = PlaceHeader
		case "envelope":
			p.Place = PlaceEnvelope
		case "partition":
			p.Place = PlacePartition
		default:
			errs = append(errs, fmt.Errorf("placement %q: the place is header, envelope or partition", strings.TrimSpace(entry)))
			continue
		}
		out = append(out, p)
	}
	return out, errors.Join(errs...)
}
