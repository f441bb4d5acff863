package deliver

import (
	"cmp"
	"slices"
	"sync"

	"github.com/segmentio/kafka-go"
)

// spread shares the partitions of all topics evenly among the members of a group. kafka-go's own balancers go topic by
// topic, so with topics of one partition each the first member would get them all. It also keeps, on the member that
// was made leader, how many partitions it has shared out: kafka-go's own watch for new ones compares with a count of
// its own that may be taken after they came, and misses them for ever then (segmentio/kafka-go issue 646).
type spread struct {
	// mu guards shared.
	mu     sync.Mutex
	shared map[string]int // partitions by topic; nil: this member does not lead
}

// ProtocolName implements kafka.GroupBalancer. All members of a group must have it.
func (*spread) ProtocolName() string { return "relay-spread" }

// UserData implements kafka.GroupBalancer. It is asked for before each joining, when nobody knows yet who will lead.
func (s *spread) UserData() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = nil
	return nil, nil
}

// AssignGroups implements kafka.GroupBalancer.
func (s *spread) AssignGroups(members []kafka.GroupMember, partitions []kafka.Partition) kafka.GroupMemberAssignments {
	members, partitions = slices.Clone(members), slices.Clone(partitions)
	slices.SortFunc(members, func(a, b kafka.GroupMember) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(partitions, func(a, b kafka.Partition) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID, b.ID))
	})
	out := kafka.GroupMemberAssignments{}
	for _, m := range members {
		out[m.ID] = map[string][]int{}
	}
	shared := map[string]int{}
	next := 0
	for _, p := range partitions {
		shared[p.Topic]++
		for range members { // the next in turn that reads the topic
			m := members[next%len(members)]
			next++
			if slices.Contains(m.Topics, p.Topic) {
				out[m.ID][p.Topic] = append(out[m.ID][p.Topic], p.ID)
				break
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = shared
	return out
}

// outdated reports whether there are other partitions than this member has shared out, if it did.
func (s *spread) outdated(now map[string]int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shared == nil {
		return false
	}
	for topic, n := range now {
		if n > s.shared[topic] {
			return true
		}
	}
	return false
}
