package ledger

// Step is one row of the state machine: in which states a call may find a row, and what becomes of it.
type Step struct {
	Row     string   // its number in the table of docs/ledger.md
	Calls   []string // functions of schema ledger
	From    []State
	To      State   // of the row afterwards
	Outcome Outcome // what the caller is answered; empty: a count, or nothing
	Guard   string  // what must hold besides
}

// Machine returns the state machine as data: every step that changes a row. What is not in it changes nothing and is
// answered with an outcome that says why. The tests hold the database to it.
func Machine() []Step {
	const none = stateAbsent
	making := []string{"reserve", "reserve_batch", "register_batch", "once", "once_batch"}
	asking := []string{"reserve", "reserve_batch", "claim_due"}
	reserving := append([]string{"once", "once_batch"}, asking...)
	meeting := append([]string{"register_batch"}, reserving...)
	waiting := []State{StatePending, StateFailed}
	held := []State{StateReserved}
	unheld := append(waiting, StateReserved)
	return []Step{
		{"1", []string{"reserve", "reserve_batch"}, []State{none}, StateReserved, Reserved, "not expired, predecessor delivered"},
		{"1b", making, []State{none}, StatePending, Blocked, "not expired, predecessor absent or not terminal"},
		{"1b", meeting, waiting, StatePending, Blocked, "predecessor absent or not terminal"},
		{"1b", reserving, held, StatePending, Blocked, "the same; lease over, not begun"},
		{"1b", meeting, []State{StatePending}, StateDead, Dead, "predecessor absent or not terminal past the horizon"},
		{"1c", making, []State{none}, StateSkipped, AlreadySkipped, "predecessor skipped or dead"},
		{"1c", append([]string{"sweep"}, meeting...), waiting, StateSkipped, AlreadySkipped, "predecessor skipped or dead"},
		{"1c", append([]string{"sweep"}, reserving...), held, StateSkipped, AlreadySkipped, "the same; lease over, not begun"},
		{"2", []string{"register_batch"}, []State{none}, StatePending, Registered, "not expired"},
		{"3", []string{"once", "once_batch"}, append([]State{none}, unheld...), StateDelivered, Delivered, "predecessor delivered; reserved: lease over, not begun"},
		{"3", []string{"once"}, append([]State{none}, unheld...), StateSkipped, Skipped, "the same, with a reason to skip"},
		{"4", asking, waiting, StateReserved, Reserved, "due, attempts left"},
		{"5", asking, []State{StateReserved}, StateReserved, Reserved, "lease over, not begun, attempts left"},
		{"6", append([]string{"sweep"}, reserving...), held, StateUncertain, Uncertain, "lease over, begun; not resend, or window or attempts used up"},
		{"6", asking, []State{StateReserved}, StateReserved, Reserved, "lease over, begun, resend within the provider's window"},
		{"7", append([]string{"sweep"}, asking...), unheld, StateDead, Dead, "attempts used up; reserved: lease over, not begun"},
		{"8", []string{"begin_effect"}, []State{StateReserved}, StateReserved, Begun, "fence, enough of the lease left, not begun"},
		{"9", []string{"renew"}, []State{StateReserved}, StateReserved, Renewed, "fence, lease live, below the cap on holding"},
		{"10", []string{"complete", "complete_batch"}, []State{StateReserved}, StateDelivered, Delivered, "fence; guarded: begun"},
		{"11", []string{"complete", "complete_batch"}, []State{StateReserved, StatePending, StateFailed, StateUncertain, StateDead}, StateDelivered, LateAccepted, "fence of this generation; reserved: a newer fence, not begun; guarded: some effect begun"},
		{"13", []string{"fail"}, []State{StateReserved}, StateFailed, Failed, "fence; retry, attempts left"},
		{"14", []string{"fail"}, []State{StateReserved}, StateDead, Dead, "fence; permanent, or attempts used up"},
		{"15", []string{"fail"}, []State{StateReserved}, StateUncertain, Uncertain, "fence; ambiguous, as row 6"},
		{"15", []string{"fail"}, []State{StateReserved}, StateFailed, Failed, "fence; ambiguous, resend within the provider's window"},
		{"15b", []string{"fail"}, []State{StateUncertain}, StateFailed, Failed, "fence; retry, attempts left"},
		{"15b", []string{"fail"}, []State{StateUncertain}, StateDead, Dead, "fence; retry, attempts used up"},
		{"16", []string{"skip"}, []State{StateReserved}, StateSkipped, Skipped, "fence, not begun"},
		{"17", []string{"release"}, []State{StateReserved}, StatePending, Released, "fence, not begun"},
		{"18", []string{"resolve"}, []State{StateUncertain}, StateDelivered, Delivered, "fence"},
		{"18", []string{"resolve"}, []State{StateUncertain}, StateFailed, Failed, "fence"},
		{"18", []string{"resolve"}, []State{StateUncertain}, StateDead, Dead, "fence"},
		{"18b", []string{"claim_uncertain"}, []State{StateUncertain}, StateUncertain, "", "nobody probes it"},
		{"19", []string{"redrive"}, []State{StateDead, StateSkipped, StateUncertain}, StatePending, Redriven, "actor and reason"},
		{"20", []string{"redrive"}, []State{StateDelivered, StateDead, StateUncertain}, StatePending, Redriven, "actor and reason, resend: a new generation"},
		{"21", []string{"purge"}, []State{StateDelivered, StateSkipped, StateDead}, none, "", "settled for longer than the retention"},
	}
}
