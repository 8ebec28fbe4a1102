"""A voice agent of LiveKit that recognizes speech with a gateway; models of OpenAI answer and speak.

    pip install livekit-agents==1.8.9 livekit-plugins-openai==1.8.9
    python livekit_agent.py console    # this machine's microphone; `dev` and `start` join LiveKit's rooms

Environment: OPENAI_API_KEY; PENSTOCK_URL (http://localhost:8080) and PENSTOCK_KEY.
"""

import os

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, UserInputTranscribedEvent, cli
from livekit.agents.stt import STT
from livekit.plugins import openai

INSTRUCTIONS = "You answer calls of a shop. Your words are spoken: answer in one short sentence."
NAMES = ["rubout", "penstock"]

server = AgentServer()


def recognizer() -> openai.STT:
    """Makes the plugin that streams to the gateway. It takes keywords for this model and gpt-live-transcribe only."""
    gateway = os.getenv("PENSTOCK_URL", "http://localhost:8080")
    return openai.STT(
        base_url=f"{gateway}/v1",
        api_key=os.getenv("PENSTOCK_KEY", "none"),
        model="gpt-transcribe",
        use_realtime=True,
        keywords=NAMES,
        turn_detection={"type": "server_vad", "silence_duration_ms": 500},
    )


def make_session(stt: STT) -> AgentSession:
    """Makes a session whose turns end with the segments of the gateway; LiveKit's own VAD only interrupts the agent."""
    turns = {"turn_detection": "stt", "endpointing": {"min_delay": 0.0}}
    session = AgentSession(stt=stt, llm=openai.LLM(), tts=openai.TTS(), turn_handling=turns)

    @session.on("user_input_transcribed")
    def show(event: UserInputTranscribedEvent) -> None:
        if event.is_final:
            print("user:", event.transcript, flush=True)

    return session


@server.rtc_session()
async def answer(job: JobContext) -> None:
    """Joins a call."""
    await make_session(recognizer()).start(Agent(instructions=INSTRUCTIONS), room=job.room)


if __name__ == "__main__":
    cli.run_app(server)
