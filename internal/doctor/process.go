package doctor

import (
	"context"
)

const sectionProcess = "Process"

func (p *patient) process() []step {
	return []step{
		{sectionProcess, "memory", nil, p.memory},
		{sectionProcess, "admin listener", nil, p.admin},
	}
}

// resident is what the program takes beside what its garbage collector knows of.
const resident = 16 << 20

func (p *patient) memory(_ context.Context, s *sheet) {
	c := p.cfg.Process
	switch {
	case c.GoLimit > 0 && c.GoLimit < c.Needed:
		s.warn("GOMEMLIMIT", do("raise it, leave it out, or make window_bytes smaller"), "%s, and the window and what goes with it take %s: the collector works all the time when the window is full", size(c.GoLimit), size(c.Needed))
	case c.GoLimit > 0:
		s.ok("GOMEMLIMIT", "%s", size(c.GoLimit))
	default:
		s.ok("GOMEMLIMIT", "not set; relay run takes %s", size(c.Needed))
	}
	switch {
	case c.Limit > 0 && c.Limit < c.Needed+resident:
		s.warn("memory limit", do("raise the container's limit, or make window_bytes smaller"), "%s, and a relay with a full window takes %s: it would be killed in the middle of a broker's outage", size(c.Limit), size(c.Needed+resident))
	case c.Limit > 0:
		s.ok("memory limit", "%s; a relay with a full window takes %s", size(c.Limit), size(c.Needed+resident))
	default:
		s.ok("memory limit", "none seen from here; a relay with a full window takes %s", size(c.Needed+resident))
	}
}

func (p *patient) admin(ctx context.Context, s *sheet) {
	c := p.cfg.Process
	if c.Admin == "" {
		s.ok("admin listener", "off")
		return
	}
	if st, answers := c.Ask(ctx); answers {
		why := ""
		if st.Reason != "" {
			why = ": " + st.Reason
		}
		switch {
		case st.State.NeedsHuman():
			words, run := splitHint(st.Hint)
			s.fail("admin listener", do(words, run...), "a relay answers at %s, %s%s", c.Admin, st.State, why)
		case !st.State.Ready():
			s.warn("admin listener", do(st.Hint), "a relay answers at %s, %s%s", c.Admin, st.State, why)
		default:
			s.ok("admin listener", "a relay answers at %s, %s%s", c.Admin, st.State, why)
		}
		return
	}
	if err := c.Bind(ctx); err != nil {
		s.fail("admin listener", do("choose another admin.listen, or end what listens there"), "no relay answers at %s, and it cannot be listened at: %v", c.Admin, err)
		return
	}
	s.ok("admin listener", "%s is free: no relay runs here", c.Admin)
}
