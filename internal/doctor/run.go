package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// stepTimeout is how long a step may take unless it says otherwise: more than a statement of it may.
const stepTimeout = 15 * time.Second

// step looks at one thing.
type step struct {
	section string
	name    string   // unique; also that of the line which says that it was skipped
	needs   []string // steps that must not have failed
	run     func(context.Context, *sheet)
}

// run runs the steps in order.
func run(ctx context.Context, steps []step) Report {
	r := Report{Status: OK}
	wanting := map[string]string{} // by step that failed or was skipped: for want of what
	for _, st := range steps {
		s := &sheet{section: st.section}
		if i := slices.IndexFunc(st.needs, func(n string) bool { return wanting[n] != "" }); i >= 0 {
			cause := wanting[st.needs[i]]
			wanting[st.name] = cause
			s.add(Skip, st.name, "", nil, "not looked at, because of %s", cause)
		} else {
			within, cancel := context.WithTimeout(ctx, stepTimeout)
			st.run(within, s)
			late := within.Err() != nil
			cancel()
			if len(s.checks) == 0 && late {
				s.fail(st.name, do("try again when the server has less to do"), "no answer within %v", stepTimeout)
			}
			if s.failed() {
				wanting[st.name] = fmt.Sprintf("%q", st.name)
			}
		}
		for _, c := range s.checks {
			r.add(c)
		}
		if ctx.Err() != nil {
			return r
		}
	}
	return r
}
