// What the fixtures keep of their streams, for clients that come back.

/** Keeps every event of one session, in order. */
export class Events {
  #events = [];
  async storeEvent(stream, message) {
    this.#events.push({ stream, message });
    return String(this.#events.length - 1);
  }
  async getStreamIdForEventId(id) {
    return this.#events[Number(id)]?.stream;
  }
  async replayEventsAfter(id, { send }) {
    const { stream } = this.#events[Number(id)];
    for (let next = Number(id) + 1; next < this.#events.length; next += 1) {
      const event = this.#events[next];
      const isPriming = Object.keys(event.message).length === 0;
      if (event.stream === stream && !isPriming) await send(String(next), event.message);
    }
    return stream;
  }
}
