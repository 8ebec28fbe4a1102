"""A voice agent of Pipecat that recognizes speech with a gateway; models of OpenAI answer and speak.

    pip install 'pipecat-ai[nvidia,openai]==1.14.0'
    python pipecat_agent.py    # serves one client of Pipecat's WebSocket transport, on port 8765

Environment: OPENAI_API_KEY; PENSTOCK_GRPC (localhost:50051) and PENSTOCK_KEY.
"""

import asyncio
import os

from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregator,
    LLMUserAggregatorParams,
    UserTurnStoppedMessage,
)
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.services.nvidia.stt import NvidiaSTTService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.stt_service import STTService
from pipecat.transports.base_transport import BaseTransport
from pipecat.transports.websocket.server import WebsocketServerParams, WebsocketServerTransport
from pipecat.workers.runner import WorkerRunner

INSTRUCTIONS = "You answer calls of a shop. Your words are spoken: answer in one short sentence."
NAMES = ["rubout", "penstock"]
RATE_HZ = 16_000


def recognizer() -> NvidiaSTTService:
    """Makes the service that streams to the gateway."""
    settings = NvidiaSTTService.Settings(boosted_lm_words=NAMES, boosted_lm_score=75.0)  # 1.5 nats per token
    return NvidiaSTTService(
        server=os.getenv("PENSTOCK_GRPC", "localhost:50051"),
        api_key=os.getenv("PENSTOCK_KEY"),
        use_ssl=False,
        model_function_map={"function_id": "", "model_name": ""},
        stop_history=500,  # the service's own 320 ms split phrases; -1: the gateway's pause
        ttfs_p99_latency=1.0,  # this pause, a chunk, and the decoder
        settings=settings,
    )


def make_agent(transport: BaseTransport, stt: STTService) -> PipelineWorker:
    """Makes the pipeline of a call. The VAD interrupts the agent; Pipecat's Smart Turn decides when to answer."""
    llm = OpenAILLMService(settings=OpenAILLMService.Settings(system_instruction=INSTRUCTIONS))
    user, assistant = LLMContextAggregatorPair(
        LLMContext(), user_params=LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    )

    @user.event_handler("on_user_turn_stopped")
    async def show(_: LLMUserAggregator, strategy: object, turn: UserTurnStoppedMessage) -> None:
        print("user:", turn.content, flush=True)

    stages = [transport.input(), stt, user, llm, OpenAITTSService(), transport.output(), assistant]
    return PipelineWorker(Pipeline(stages), params=PipelineParams(audio_in_sample_rate=RATE_HZ))


async def main() -> None:
    """Serves a client."""
    params = WebsocketServerParams(audio_in_enabled=True, audio_out_enabled=True, serializer=ProtobufFrameSerializer())
    runner = WorkerRunner()
    await runner.add_workers(make_agent(WebsocketServerTransport(params), recognizer()))
    await runner.run()


if __name__ == "__main__":
    asyncio.run(main())
